"""A family of comparisons: pairs of models with p-values and intervals that are corrected together."""

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
"""Minimum number of seeds of a model for a verdict."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """All comparisons that are corrected together. Arrays have shape (P,), one value for each pair."""

    models: int
    pairs: Pairs
    difference: Array
    seeds: Array
    """Number of seeds of each pair: that of the model with fewer seeds."""
    blocked: bool
    """True if differences are taken within seeds."""
    tests: PairTests
    test: str
    """Name of the test."""

    def p_values(self) -> Array:
        return self.tests.p_values(self.difference)

    def half_widths(self, level: float = LEVEL) -> Array:
        """Return half of the width of the simultaneous intervals with confidence 1 - ``level``."""
        return self.tests.half_widths(level)

    def planned(self, seeds: int) -> PairTests:
        """Return the tests for ``seeds`` seeds of every model, with the estimated standard deviations."""
        tests, error_scale = self.tests, np.sqrt(self.seeds / seeds)
        freedom_scale = (seeds - 1) / (self.seeds - 1)
        return PairTests(
            error=tests.error * error_scale, freedom=tests.freedom * freedom_scale,
            factor=small_sample_factor(np.full(len(error_scale), seeds), self.models, blocked=self.blocked),
            own_error=tests.own_error * error_scale, own_freedom=tests.own_freedom * freedom_scale,
            own_share=own_share(seeds, self.models), statistic=tests.statistic,
        )  # fmt: skip


def make_family(scores: Sequence[Mapping[int, float]], baseline: int | None, *, shared: bool) -> Family:
    """Return the comparisons of models with ``MIN_SEEDS`` seeds or more; higher scores are better.

    Args:
        scores: scores of each model, by seed. If seeds are shared, all models have the same seeds.
        baseline: index of the model that every model is compared with; None for all pairs.
        shared: True if differences are taken within seeds.
    """
    count = len(scores)
    pairs = np.array(
        list(combinations(range(count), 2))
        if baseline is None
        else [(model, baseline) for model in range(count) if model != baseline]
    )
    sizes = np.array([float(len(by_seed)) for by_seed in scores])
    means = np.array([math.fsum(by_seed.values()) / len(by_seed) for by_seed in scores])
    if shared:
        seeds = sorted(scores[0])
        score_KN = np.array([[by_seed[s] for s in seeds] for by_seed in scores])
        (error, freedom), pairwise = blocked_errors(score_KN, pairs), own_blocked(score_KN, pairs)
    else:
        variances = np.array([_variance([*by_seed.values()]) for by_seed in scores])
        error, freedom = independent_errors(variances, sizes, pairs)
        pairwise = welch(variances, sizes, pairs)
    smaller = np.minimum(sizes[pairs[:, 0]], sizes[pairs[:, 1]])
    share = own_share(float(smaller.min()), count)
    pair_test = "paired t" if shared else "Welch"
    if count == 2:
        statistic, test = one_comparison(), pair_test
    elif baseline is None:
        statistic, test = all_pairs(count), "larger-SE Tukey"
    else:
        model_sizes = tuple(sorted(round(size) for model, size in enumerate(sizes) if model != baseline))
        statistic, test = against_baseline(model_sizes, round(sizes[baseline])), "larger-SE Dunnett"
    return Family(
        models=count, pairs=pairs, difference=means[pairs[:, 0]] - means[pairs[:, 1]], seeds=smaller,
        blocked=shared, test=test + f" or {pair_test}" * (share > 0) + ", blocked" * (shared and count > 2),
        tests=PairTests(
            error=error, freedom=np.nan_to_num(freedom, nan=1.0),
            factor=small_sample_factor(smaller, count, blocked=shared),
            own_error=np.sqrt(np.where(pairwise[0] > 0, pairwise[0], np.nan)),
            own_freedom=np.nan_to_num(pairwise[1], nan=1.0), own_share=share, statistic=statistic,
        ),
    )  # fmt: skip


def _variance(values: list[float]) -> float:
    """Return the variance over seeds: exactly 0 if all values are equal, despite rounding errors."""
    return 0.0 if min(values) == max(values) else float(np.var(values, ddof=1))
