"""The two tests of each pair of a family, which share its level.

The first is Tukey's or Dunnett's, with the larger of two standard errors (``pair_errors``). It has most power
if the spreads of models are similar, and little if one model is much noisier: the pooled error then hides
the difference between two quiet models. The second, for five seeds or more, is the t-test of the two models
with their variances only, with Bonferroni's correction. It gets a fifth of the level: a pair differs if the
first test rejects at 4% or the second at 1%, so that the family-wise error is at most 5%.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from analysis.stats.verdicts.max_statistic import LEVEL, POWER, Array, MaxStatistic

OWN_SHARE = 0.2
"""Fraction of the level of the second test."""
OWN_SEEDS = 5
"""With fewer seeds, variances of single models are so uncertain that the first test gets the full level."""


def own_share(seeds: float, models: int) -> float:
    """Return the fraction of the level of the second test, if every model has at least ``seeds`` seeds."""
    return OWN_SHARE if models > 2 and seeds >= OWN_SEEDS else 0.0


@dataclass(frozen=True, kw_only=True)
class PairTests:
    """Standard errors and degrees of freedom of all pairs of a family. Arrays have shape (P,)."""

    error: Array
    """The larger of the pair's and the pooled standard error; NaN if no model has any spread."""
    freedom: Array
    factor: Array
    """Divisor of |t| in the first test (``pair_errors.SMALL_SAMPLE``)."""
    own_error: Array
    """Standard error from the two models only; NaN if neither has any spread (no second test)."""
    own_freedom: Array
    own_share: float
    statistic: MaxStatistic

    def p_values(self, difference: Array) -> Array:
        """Return the p-values, corrected for the family; NaN if no model has any spread."""
        with np.errstate(invalid="ignore", divide="ignore"):
            t = np.abs(difference) / (self.factor * self.error)
            pairwise_t = np.abs(difference) / self.own_error
        family_p = np.where(np.isnan(t), np.nan, self.statistic.p_value(np.nan_to_num(t), self.freedom))
        if not self.own_share:
            return family_p
        pair_p = len(t) * 2 * special.stdtr(self.own_freedom, -pairwise_t)
        return np.minimum(1.0, np.fmin(family_p / (1 - self.own_share), pair_p / self.own_share))

    def half_widths(self, level: float = LEVEL) -> Array:
        """Return half of the width of the simultaneous intervals with confidence 1 - ``level``."""
        critical = self.statistic.critical(self.freedom, (1 - self.own_share) * level)
        if not self.own_share:
            return self.factor * self.error * critical
        return np.fmin(self.factor * self.error * critical, self.own_error * self._own_critical(level))

    def detectable(self) -> Array:
        """Return the true difference detected with 80% power, given the estimated standard deviations."""
        family_shift = np.zeros(len(self.error))
        for value in np.unique(self.factor):
            has_factor = self.factor == value
            level = (1 - self.own_share) * LEVEL
            family_shift[has_factor] = self.statistic.detectable_shift(
                self.freedom[has_factor], float(value), level
            )
        if not self.own_share:
            return self.error * family_shift
        pair_shift = special.nctdtrinc(self.own_freedom, 1 - POWER, self._own_critical(LEVEL))
        return np.fmin(self.error * family_shift, self.own_error * pair_shift)

    def _own_critical(self, level: float) -> Array:
        return np.asarray(stats.t.isf(self.own_share * level / 2 / len(self.error), self.own_freedom))
