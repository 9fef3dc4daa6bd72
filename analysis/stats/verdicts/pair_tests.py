"""The two tests of each pair of a family, which share its level.

The first is Tukey's or Dunnett's, with the larger of two standard errors (``pair_errors``). It has most power
where models spread alike, and little where one model is far noisier than all others: the pooled error then
hides what two quiet models differ by. The second, from five seeds on, is the t-test of the two models alone,
by their own variances, with Bonferroni's correction. It gets a fifth of the level: a pair differs where the
first test finds it at 4% or the second at 1%, so that the error of the family stays within 5%.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from analysis.stats.verdicts.max_statistic import LEVEL, POWER, Array, MaxStatistic

OWN_SHARE = 0.2
"""Of the level, what the second test gets."""
OWN_SEEDS = 5
"""With fewer seeds own variances are too uncertain to gain anything: the first test has the whole level."""


def own_share(seeds: float, models: int) -> float:
    """Return the part of the level of the second test, in a family whose models have ``seeds`` or more."""
    return OWN_SHARE if models > 2 and seeds >= OWN_SEEDS else 0.0


@dataclass(frozen=True, kw_only=True)
class PairTests:
    """Standard errors and degrees of freedom of all pairs of a family. Arrays have a number for each pair."""

    error: Array
    """The larger of a pair's own and the pooled standard error; NaN where no model has any spread."""
    freedom: Array
    factor: Array
    """Divisor of |t| in the first test (``pair_errors.SMALL_SAMPLE``)."""
    own_error: Array
    """By the two models alone; NaN where neither has any spread, and the second test says nothing."""
    own_freedom: Array
    own_share: float
    statistic: MaxStatistic

    def p_values(self, difference: Array) -> Array:
        """Return the p-values, corrected for the family; NaN where no model has any spread."""
        with np.errstate(invalid="ignore", divide="ignore"):
            t = np.abs(difference) / (self.factor * self.error)
            own_t = np.abs(difference) / self.own_error
        first = np.where(np.isnan(t), np.nan, self.statistic.p_value(np.nan_to_num(t), self.freedom))
        if not self.own_share:
            return first
        second = len(t) * 2 * special.stdtr(self.own_freedom, -own_t)
        return np.minimum(1.0, np.fmin(first / (1 - self.own_share), second / self.own_share))

    def half_widths(self, level: float = LEVEL) -> Array:
        """Return half the width of the intervals, of which any misses with probability ``level``."""
        first = self.statistic.critical(self.freedom, (1 - self.own_share) * level)
        if not self.own_share:
            return self.factor * self.error * first
        return np.fmin(self.factor * self.error * first, self.own_error * self._own_critical(level))

    def detectable(self) -> Array:
        """Return the true difference that is found with 80% power, if deviations are as estimated."""
        first = np.zeros(len(self.error))
        for value in np.unique(self.factor):
            own = self.factor == value
            level = (1 - self.own_share) * LEVEL
            first[own] = self.statistic.detectable_shift(self.freedom[own], float(value), level)
        if not self.own_share:
            return self.error * first
        second = special.nctdtrinc(self.own_freedom, 1 - POWER, self._own_critical(LEVEL))
        return np.fmin(self.error * first, self.own_error * second)

    def _own_critical(self, level: float) -> Array:
        return np.asarray(stats.t.isf(self.own_share * level / 2 / len(self.error), self.own_freedom))
