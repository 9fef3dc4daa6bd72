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
    against_baseline,
    all_pairs,
    one_comparison,
)
from analysis.stats.verdicts.pair_errors import (
    Pairs,
    blocked_errors,
    independent_errors,
    own_blocked,
    small_sample_factor,
    welch,
)
from analysis.stats.verdicts.pair_tests import PairTests, own_share

MIN_SEEDS = 3
"""With fewer seeds no verdict is drawn."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """All comparisons that are corrected together. Arrays have a number for each pair."""

    models: int
    pairs: Pairs
    difference: Array
    seeds: Array
    """Seeds of the smaller model of each pair."""
    blocked: bool
    """True where differences are taken within seeds."""
    tests: PairTests
    test: str
    """Name of the test."""

    def p_values(self) -> Array:
        return self.tests.p_values(self.difference)

    def half_widths(self, level: float = LEVEL) -> Array:
        """Return half the width of the simultaneous interval that misses with probability ``level``."""
        return self.tests.half_widths(level)

    def planned(self, seeds: int) -> PairTests:
        """Return the tests if every model had so many seeds, and the deviations that were estimated."""
        tests, known = self.tests, np.sqrt(self.seeds / seeds)
        longer = (seeds - 1) / (self.seeds - 1)
        return PairTests(
            error=tests.error * known, freedom=tests.freedom * longer,
            factor=small_sample_factor(np.full(len(known), seeds), self.models, blocked=self.blocked),
            own_error=tests.own_error * known, own_freedom=tests.own_freedom * longer,
            own_share=own_share(seeds, self.models), statistic=tests.statistic,
        )  # fmt: skip


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
        score_KN = np.array([[own[s] for s in seeds] for own in scores])
        (error, freedom), own = blocked_errors(score_KN, pairs), own_blocked(score_KN, pairs)
    else:
        variances = np.array([_variance([*own.values()]) for own in scores])
        (error, freedom), own = independent_errors(variances, sizes, pairs), welch(variances, sizes, pairs)
    smaller = np.minimum(sizes[pairs[:, 0]], sizes[pairs[:, 1]])
    share = own_share(float(smaller.min()), count)
    own_name = "paired t" if shared else "Welch"
    if count == 2:
        statistic, test = one_comparison(), own_name
    elif baseline is None:
        statistic, test = all_pairs(count), "larger-SE Tukey"
    else:
        others = [round(size) for model, size in enumerate(sizes) if model != baseline]
        statistic, test = against_baseline(tuple(sorted(others)), round(sizes[baseline])), "larger-SE Dunnett"
    return Family(
        models=count, pairs=pairs, difference=means[pairs[:, 0]] - means[pairs[:, 1]], seeds=smaller,
        blocked=shared, test=test + f" or {own_name}" * (share > 0) + ", blocked" * (shared and count > 2),
        tests=PairTests(
            error=error, freedom=np.nan_to_num(freedom, nan=1.0),
            factor=small_sample_factor(smaller, count, blocked=shared),
            own_error=np.sqrt(np.where(own[0] > 0, own[0], np.nan)),
            own_freedom=np.nan_to_num(own[1], nan=1.0), own_share=share, statistic=statistic,
        ),
    )  # fmt: skip


def _variance(values: list[float]) -> float:
    """Return the variance over seeds: exactly 0 where all values are equal, which rounding may hide."""
    return 0.0 if min(values) == max(values) else float(np.var(values, ddof=1))
