"""A family of comparisons of means: standard tests, with a correction of their p-values for the family.

Means are compared by Welch's t-test (``scipy.stats.ttest_ind``, computed for all pairs at once), or within
seeds by the paired t-test (``ttest_rel``). Against a baseline, Holm's
correction controls the family-wise error; for all pairs, Benjamini and Hochberg's controls the false
discovery rate. Equivalence is decided by two one-sided tests with the same correction.

Intervals have the level of the pairs that the correction does not reject (Holm: the level divided by their
number; Benjamini-Hochberg: the level times the fraction of rejected pairs, as in Benjamini and Yekutieli
2005). They contain 0 if and only if a pair is not rejected.

Axes: P pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from archbench.analysis.stats.verdicts.pair_errors import Array, PairErrors, Pairs

LEVEL = 0.05
POWER = 0.80
MIN_SEEDS = 3
"""Minimum number of seeds of a model for a verdict."""
MOST_SEEDS = 100
"""Largest number of seeds that is considered as enough to decide a pair."""


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values after Holm's step-down correction (1979), to be compared with the uncorrected level."""
    corrected, running = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = running
    return corrected


def correct(p_P: Array, *, all_pairs: bool) -> Array:
    """Return the corrected p-values of a family; NaN (a pair without a test) stays, and is not counted."""
    tested_P = ~np.isnan(p_P)
    corrected_P = np.full(len(p_P), math.nan)
    if tested_P.any():
        p = p_P[tested_P]
        corrected_P[tested_P] = (
            stats.false_discovery_control(p, method="bh") if all_pairs else holm(p.tolist())
        )
    return corrected_P


def interval_level(p_P: Array, *, all_pairs: bool, level: float = LEVEL) -> float:
    """Return the level of each interval of a family, which agrees with the correction.

    Args:
        p_P: corrected p-values.
        all_pairs: True for Benjamini and Hochberg's correction, False for Holm's.
        level: of the family.
    """
    pairs, rejected = int((~np.isnan(p_P)).sum()), int((p_P < level).sum())
    if all_pairs:
        return level * max(1, rejected) / max(1, pairs)
    return level / max(1, pairs - rejected)


@dataclass(frozen=True, kw_only=True)
class Family:
    """All comparisons of means that are corrected together. Arrays have a value for each pair."""

    pairs: Pairs
    difference: Array
    seeds: Array
    """Number of seeds of the model with fewer seeds."""
    error: Array
    """Standard error of the difference; NaN if neither model has any spread, so that there is no test."""
    freedom: Array
    all_pairs: bool
    blocked: bool
    """True if differences are taken within seeds."""

    @property
    def test(self) -> str:
        """Name of the test, and of the correction if there is more than one pair."""
        test = "paired t" if self.blocked else "Welch"
        if len(self.pairs) == 1:
            return test
        return f"{test}, {'Benjamini-Hochberg' if self.all_pairs else 'Holm'}"

    def p_values(self) -> Array:
        """Return the corrected p-values; NaN for pairs without a test."""
        return self._corrected(2 * stats.t.sf(np.abs(self.difference) / self.error, self.freedom))

    def half_widths(self) -> Array:
        """Return half of the width of each interval."""
        level = interval_level(self.p_values(), all_pairs=self.all_pairs)
        return np.asarray(self.error * stats.t.isf(level / 2, self.freedom))

    def equivalent(self, margin: float) -> npt.NDArray[np.bool_]:
        """Return for each pair whether both one-sided tests reject a difference of the margin or more."""
        nearer = (margin - np.abs(self.difference)) / self.error
        return np.asarray(self._corrected(stats.t.sf(nearer, self.freedom)) < LEVEL) & (margin > 0)

    def detectable(self, margin: float = 0.0) -> Array:
        """Return the true difference with which each pair is called better or worse with 80% power.

        The observed difference must be significant, with Bonferroni's correction, and above the margin. The
        standard deviation is assumed to be the estimated one.
        """
        critical = stats.t.isf(LEVEL / 2 / len(self.pairs), self.freedom)
        significant = self.error * special.nctdtrinc(self.freedom, 1 - POWER, critical)
        return np.maximum(significant, margin + (self.error * special.ndtri(POWER) if margin else 0.0))

    def seeds_to_decide(self, margin: float = 0.0) -> list[int | None]:
        """Return for each pair the fewest seeds of each model that decide the observed difference.

        The power is 80%, with Bonferroni's correction. A difference above the margin is decided as better or
        worse, one within it as equivalent. The observed difference and deviations are assumed to be true.
        None if ``MOST_SEEDS`` are not enough, or if the difference is exactly 0 and there is no margin.
        """
        fewest: list[int | None] = [None] * len(self.pairs)
        size = np.abs(self.difference)
        for seeds in range(MIN_SEEDS, MOST_SEEDS + 1):
            larger = replace(
                self,
                error=self.error * np.sqrt(self.seeds / seeds),
                freedom=self.freedom * (seeds - 1) / (self.seeds - 1),
            )
            # The full 90% interval must be within the margin, not only the difference of means.
            inside = margin - larger.error * stats.t.isf(LEVEL / len(self.pairs), larger.freedom)
            equivalent = special.ndtr((inside - size) / larger.error)
            equivalent -= special.ndtr((-inside - size) / larger.error)
            found = np.where(size > margin, larger.detectable(margin) <= size, equivalent >= POWER)
            for pair in np.flatnonzero(found):
                fewest[pair] = fewest[pair] or seeds
            if None not in fewest:
                break
        return fewest

    def _corrected(self, p_P: Array) -> Array:
        return correct(p_P, all_pairs=self.all_pairs)


def pairs_of(models: int, baseline: int | None) -> Pairs:
    """Return all pairs (P, 2) of ``models`` models, or every model against the baseline."""
    if baseline is None:
        return np.array(list(combinations(range(models), 2)))
    return np.array([(model, baseline) for model in range(models) if model != baseline])


def family_of(
    means: Array, sizes: Array, errors: PairErrors, baseline: int | None, *, blocked: bool
) -> Family:
    """Return the comparisons of models with ``MIN_SEEDS`` seeds or more.

    Args:
        means: mean score of each model; higher is better.
        sizes: number of seeds of each model.
        errors: of each pair, from ``pair_errors.welch`` or ``pair_errors.paired``.
        baseline: index of the model that every model is compared with; None for all pairs.
        blocked: True if differences are taken within seeds.
    """
    pairs, tested = pairs_of(len(means), baseline), errors.positive()
    a_P, b_P = pairs.T
    return Family(
        pairs=pairs, difference=means[a_P] - means[b_P], seeds=np.minimum(sizes[a_P], sizes[b_P]),
        error=tested.error, freedom=tested.freedom, all_pairs=baseline is None, blocked=blocked,
    )  # fmt: skip
