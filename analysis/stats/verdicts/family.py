"""A family of comparisons: the pairs of models whose p-values and intervals are corrected together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from analysis.stats.verdicts.max_statistic import (
    LEVEL,
    Array,
    MaxStatistic,
    against_baseline,
    all_pairs,
    one_comparison,
)
from analysis.stats.verdicts.pair_errors import Pairs, blocked_errors, independent_errors, small_sample_factor

MIN_SEEDS = 3
"""With fewer seeds no verdict is drawn."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """All comparisons that are corrected together. Arrays have a number for each pair."""

    sizes: Array
    """Seeds of each model."""
    pairs: Pairs
    difference: Array
    error: Array
    """Standard errors; NaN where no model has any spread."""
    freedom: Array
    seeds: Array
    """Seeds of the smaller model of each pair."""
    factor: Array
    """Divisor of |t| (``pair_errors.SMALL_SAMPLE``)."""
    blocked: bool
    """True where differences are taken within seeds."""
    statistic: MaxStatistic
    test: str

    def p_values(self) -> Array:
        with np.errstate(invalid="ignore"):
            t = np.abs(self.difference) / (self.factor * self.error)
        return np.where(np.isnan(t), np.nan, self.statistic.p_value(np.nan_to_num(t), self.known_freedom))

    def half_widths(self, level: float = LEVEL) -> Array:
        """Return half the width of the simultaneous interval that misses with probability ``level``."""
        return self.factor * self.error * self.statistic.critical(self.known_freedom, level)

    @property
    def known_freedom(self) -> Array:
        return np.nan_to_num(self.freedom, nan=1.0)


def make_family(scores: Sequence[Mapping[int, float]], baseline: int | None, *, shared: bool) -> Family:
    """Return the comparisons of models with ``MIN_SEEDS`` seeds or more; more is better.

    Args:
        scores: of each model, by seed. Where seeds are shared, all have the same seeds.
        baseline: number of the model that the others are held against; None for all pairs.
    """
    count = len(scores)
    pairs = np.array(
        list(combinations(range(count), 2))
        if baseline is None
        else [(model, baseline) for model in range(count) if model != baseline]
    )
    sizes = np.array([float(len(own)) for own in scores])
    means = np.array([math.fsum(own.values()) / len(own) for own in scores])
    if shared:
        seeds = sorted(scores[0])
        error, freedom = blocked_errors(np.array([[own[s] for s in seeds] for own in scores]), pairs)
    else:
        variances = np.array([_variance([*own.values()]) for own in scores])
        error, freedom = independent_errors(variances, sizes, pairs)
    smaller = np.minimum(sizes[pairs[:, 0]], sizes[pairs[:, 1]])
    if count == 2:
        statistic, test = one_comparison(), "paired t" if shared else "Welch"
    elif baseline is None:
        statistic, test = all_pairs(count), "larger-SE Tukey"
    else:
        others = [round(size) for model, size in enumerate(sizes) if model != baseline]
        statistic, test = against_baseline(tuple(sorted(others)), round(sizes[baseline])), "larger-SE Dunnett"
    return Family(
        sizes=sizes, pairs=pairs, difference=means[pairs[:, 0]] - means[pairs[:, 1]], error=error,
        freedom=freedom, seeds=smaller,
        factor=small_sample_factor(smaller, count, blocked=shared), blocked=shared, statistic=statistic,
        test=test + ", blocked" * (shared and count > 2),
    )  # fmt: skip


def _variance(values: list[float]) -> float:
    """Return the variance over seeds: exactly 0 where all values are equal, which rounding may hide."""
    return 0.0 if min(values) == max(values) else float(np.var(values, ddof=1))
