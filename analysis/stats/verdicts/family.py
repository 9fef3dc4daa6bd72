"""A family of comparisons: pairs of models with p-values and intervals that are corrected together.

Each pair has two tests, which share its level. The first is Tukey's or Dunnett's, with the larger of two
standard errors (``pair_errors``). It has most power if the spreads of models are similar, and little if one
model is much noisier: the pooled error then hides the difference between two quiet models. The second, for
five seeds or more, is the t-test of the two models with their variances only, with Bonferroni's correction.
It gets a fifth of the level: a pair differs if the first test rejects at 4% or the second at 1%, so that the
family-wise error is at most 5%.

Axes: R (any leading axes: simulated studies; a real study has none), K (models), N (seeds), P (pairs).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from analysis.stats.verdicts import pair_errors
from analysis.stats.verdicts.max_statistic import (
    LEVEL,
    POWER,
    Array,
    MaxStatistic,
    against_baseline,
    all_pairs,
    one_comparison,
)
from analysis.stats.verdicts.pair_errors import PairErrors, Pairs

MIN_SEEDS = 3
"""Minimum number of seeds of a model for a verdict."""
MOST_SEEDS = 100
"""Largest number of seeds that is considered as enough to decide a pair."""
PAIRWISE_SHARE = 0.2
"""Fraction of the level of the second test."""
PAIRWISE_SEEDS = 5
"""With fewer seeds, variances of single models are so uncertain that the first test gets the full level."""
SMALL_SAMPLE = {3: 1.25, 4: 1.1, 5: 1.07, 6: 1.04, 7: 1.03, 8: 1.02}
"""Divisors of |t| by the smaller number of seeds of the two models; 1 for nine seeds or more.

With few seeds, the variance of a noisy pair is often underestimated by chance, and the rule misses it. The
divisors keep the family-wise error at 5%; they were determined by simulation (``simulation.py``).
"""


@dataclass(frozen=True, kw_only=True)
class Family:
    """All comparisons that are corrected together. Arrays have shape RP, one value for each pair."""

    models: int
    pairs: Pairs
    difference: Array
    seeds: Array
    """Number of seeds of each pair, (P,): that of the model with fewer seeds."""
    all_pairs: bool
    """False if every model is compared with a baseline."""
    blocked: bool
    """True if differences are taken within seeds."""
    errors: PairErrors
    """The larger of the pair's and the pooled one; a variance of NaN if no model has any spread."""
    pairwise: PairErrors
    """From the two models only; a variance of NaN if neither has any spread (no second test)."""
    statistic: MaxStatistic

    @property
    def error(self) -> Array:
        """Standard error of each difference."""
        return self.errors.error

    @property
    def test(self) -> str:
        """Name of the test."""
        pair_test = "paired t" if self.blocked else "Welch"
        if self.models == 2:
            return pair_test
        test = f"larger-SE {'Tukey' if self.all_pairs else 'Dunnett'}"
        return test + f" or {pair_test}" * (self.pairwise_share > 0) + ", blocked" * self.blocked

    @property
    def factor(self) -> Array:
        """Divisor of |t| in the first test, (P,)."""
        if self.models == 2:
            return np.ones(len(self.pairs))
        if self.blocked:  # the variance of a pair has half of the degrees of freedom
            return np.asarray(1 + 0.9 / (self.seeds - 1))
        factor = np.ones(len(self.pairs))
        for seeds, divisor in SMALL_SAMPLE.items():
            factor[self.seeds == seeds] = divisor
        return factor

    @property
    def pairwise_share(self) -> float:
        """Fraction of the level of the second test."""
        return PAIRWISE_SHARE if self.models > 2 and self.seeds.min() >= PAIRWISE_SEEDS else 0.0

    def p_values(self) -> Array:
        """Return the p-values, corrected for the family; NaN if no model has any spread."""
        size, share = np.abs(self.difference), self.pairwise_share
        with np.errstate(invalid="ignore", divide="ignore"):
            t = size / (self.factor * self.errors.error)
            pairwise_t = size / self.pairwise.error
        family_p = np.where(
            np.isnan(t), np.nan, self.statistic.p_value(np.nan_to_num(t), self.errors.freedom)
        )
        if not share:
            return family_p
        pair_p = len(self.pairs) * 2 * special.stdtr(self.pairwise.freedom, -pairwise_t)
        return np.minimum(1.0, np.fmin(family_p / (1 - share), pair_p / share))

    def half_widths(self, level: float = LEVEL) -> Array:
        """Return half of the width of the simultaneous intervals with confidence 1 - ``level``."""
        critical = self.statistic.critical(self.errors.freedom, (1 - self.pairwise_share) * level)
        half_width = self.factor * self.errors.error * critical
        if not self.pairwise_share:
            return half_width
        return np.fmin(half_width, self.pairwise.error * self._pairwise_critical(level))

    def detectable(self, margin: float = 0.0) -> Array:
        """Return the smallest true difference that each pair's test finds with 80% power, above the margin.

        The standard deviation is assumed to be the estimated one.
        """
        shift, level = np.zeros(len(self.pairs)), (1 - self.pairwise_share) * LEVEL
        for factor in np.unique(self.factor):
            has_factor = self.factor == factor
            freedom = self.errors.freedom[has_factor]
            shift[has_factor] = self.statistic.detectable_shift(freedom, float(factor), level)
        difference = self.errors.error * shift
        if self.pairwise_share:
            critical = self._pairwise_critical(LEVEL)
            pair_shift = special.nctdtrinc(self.pairwise.freedom, 1 - POWER, critical)
            difference = np.fmin(difference, self.pairwise.error * pair_shift)
        return np.maximum(difference, margin)

    def _pairwise_critical(self, level: float) -> Array:
        tail = self.pairwise_share * level / 2 / len(self.pairs)
        return np.asarray(stats.t.isf(tail, self.pairwise.freedom))

    def equivalent(self, margin: float) -> npt.NDArray[np.bool_]:
        """Return for each pair whether two one-sided tests find it within the margin (Schuirmann 1987).

        Both tests reject at the 5% level if and only if the 90% interval is within the margin. The interval
        is simultaneous over the family, so the probability of any false equivalence is about 5%. No pair is
        equivalent if the margin is 0.
        """
        with np.errstate(invalid="ignore"):
            return np.asarray(np.abs(self.difference) + self.half_widths(2 * LEVEL) < margin)

    def with_seeds(self, seeds: int) -> Family:
        """Return the family with ``seeds`` seeds of every model, and the same standard deviations."""

        def scaled(errors: PairErrors) -> PairErrors:
            return PairErrors(
                errors.variance * (self.seeds / seeds), errors.freedom * ((seeds - 1) / (self.seeds - 1))
            )

        sizes = np.full(len(self.pairs), float(seeds))
        return replace(self, seeds=sizes, errors=scaled(self.errors), pairwise=scaled(self.pairwise))

    def seeds_to_decide(self, margin: float = 0.0) -> list[int | None]:
        """Return for each pair the fewest seeds of each model that decide the observed difference.

        The power is 80%, with the correction of the family. A difference above the margin is decided as
        better or worse, one within it as equivalent. Deviations and the difference are assumed to be the
        observed ones. None if ``MOST_SEEDS`` are not enough, or if the observed difference is exactly 0 and
        there is no margin.
        """
        fewest: list[int | None] = [None] * len(self.pairs)
        size = np.abs(self.difference)
        for seeds in range(MIN_SEEDS, MOST_SEEDS + 1):
            larger_family = self.with_seeds(seeds)
            error = larger_family.errors.error
            if larger_family.pairwise_share:
                error = np.fmin(error, larger_family.pairwise.error)
            with np.errstate(invalid="ignore", divide="ignore"):
                # The full interval must be within the margin, not only the mean difference.
                inside = margin - larger_family.half_widths(2 * LEVEL)
                equivalent = special.ndtr((inside - size) / error) - special.ndtr((-inside - size) / error)
                is_detectable = larger_family.detectable() <= size
            for pair in np.flatnonzero(np.where(size > margin, is_detectable, equivalent >= POWER)):
                fewest[pair] = fewest[pair] or seeds
            if None not in fewest:
                break
        return fewest


def pairs_of(models: int, baseline: int | None) -> Pairs:
    """Return all pairs (P, 2) of ``models`` models, or every model against the baseline."""
    if baseline is None:
        return np.array(list(combinations(range(models), 2)))
    return np.array([(model, baseline) for model in range(models) if model != baseline])


def independent_family(mean_RK: Array, variance_RK: Array, size_K: Array, baseline: int | None) -> Family:
    """Return the comparisons of models that do not share their seeds; of two models, by Welch's t-test.

    Args:
        mean_RK: means over seeds; higher is better.
        variance_RK: variances over seeds, exactly 0 without spread.
        size_K: numbers of seeds.
        baseline: index of the model that every model is compared with; None for all pairs.
    """
    pairs = pairs_of(len(size_K), baseline)
    pairwise = pair_errors.welch(variance_RK, size_K, pairs)
    pool = pair_errors.pooled(variance_RK, size_K, pairs)
    return _family(mean_RK, size_K, baseline, pairwise, pool, blocked=False)


def blocked_family(score_RKN: Array, mean_RK: Array, baseline: int | None) -> Family:
    """Return the comparisons of models that share their seeds; of two models, by the paired t-test."""
    *_, models, seeds = score_RKN.shape
    pairs, size_K = pairs_of(models, baseline), np.full(models, float(seeds))
    pairwise, pool = pair_errors.paired(score_RKN, pairs), pair_errors.blocked(score_RKN, pairs)
    return _family(mean_RK, size_K, baseline, pairwise, pool, blocked=True)


def _family(
    mean_RK: Array,
    size_K: Array,
    baseline: int | None,
    pairwise: PairErrors,
    pool: PairErrors,
    *,
    blocked: bool,
) -> Family:
    count = len(size_K)
    a_P, b_P = pairs_of(count, baseline).T
    if count == 2:
        statistic = one_comparison()
    elif baseline is None:
        statistic = all_pairs(count)
    else:
        model_sizes = tuple(sorted(round(size) for model, size in enumerate(size_K) if model != baseline))
        statistic = against_baseline(model_sizes, round(size_K[baseline]))
    return Family(
        models=count, pairs=pairs_of(count, baseline), difference=mean_RK[..., a_P] - mean_RK[..., b_P],
        seeds=np.minimum(size_K[a_P], size_K[b_P]), all_pairs=baseline is None, blocked=blocked,
        statistic=statistic,
        errors=pairwise.positive() if count == 2 else pair_errors.larger(pairwise, pool),
        pairwise=pairwise.positive(),
    )  # fmt: skip
