"""Exact tests of two models: Boschloo's of solve counts, Wilcoxon's rank-sum test of scores.

If scores jump from seed to seed, because only some runs solve the task, they are not normally distributed,
but they can be ranked. Solve counts do not distinguish a model that reaches 0.7 in each run from one that
stays at 0.3, if neither solves the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from scipy import stats

from analysis.stats.verdicts.max_statistic import Array

RATES = 400
"""Number of values of the common rate over which Boschloo's test maximises the probability."""
MIN_RANKED = 5
"""With fewer seeds of each model, the smallest p-value of the rank test is 0.03 or more, too large to reject.
"""


@cache
def boschloo_table(seeds: int, other_seeds: int) -> Array:
    """Return the two-sided p-value of Boschloo's exact test (1970) for every two counts.

    ``scipy.stats.boschloo_exact`` computes the same for one table at a time, which is slow for the pairs
    of a study. This function sums the probability of all tables that are as extreme by Fisher's p-value for
    400 values of the common rate, and returns the largest.
    """
    count_a, count_b = np.arange(seeds + 1)[:, None], np.arange(other_seeds + 1)[None, :]
    all_seeds = seeds + other_seeds
    greater = _largest_probability(stats.hypergeom.sf(count_a - 1, all_seeds, count_a + count_b, seeds))
    less = _largest_probability(stats.hypergeom.cdf(count_a, all_seeds, count_a + count_b, seeds))
    return np.asarray(np.minimum(1.0, 2 * np.minimum(greater, less)))


def _largest_probability(fisher: Array) -> Array:
    """Return for each table the probability of one as extreme by Fisher's p, maximised over common rates."""
    rates_G = np.sin(np.linspace(0, np.pi / 2, RATES)) ** 2
    (seeds_a, seeds_b) = (count - 1 for count in fisher.shape)
    pmf_GT = (
        stats.binom.pmf(np.arange(seeds_a + 1)[None, :, None], seeds_a, rates_G[:, None, None])
        * stats.binom.pmf(np.arange(seeds_b + 1)[None, None, :], seeds_b, rates_G[:, None, None])
    ).reshape(RATES, -1)
    order = np.argsort(fisher.ravel(), kind="stable")
    ordered = fisher.ravel()[order]
    end_of_ties = (
        np.searchsorted(ordered, ordered * (1 + 1e-12), side="right") - 1
    )  # includes tables that are equally extreme
    largest = np.empty(len(order))
    largest[order] = np.cumsum(pmf_GT[:, order], axis=1).max(axis=0)[end_of_ties]
    return largest.reshape(fisher.shape)


def boschloo(counts_a: tuple[int, int], counts_b: tuple[int, int]) -> float:
    """Return the two-sided p-value of two counts, each successes of trials."""
    return float(boschloo_table(counts_a[1], counts_b[1])[counts_a[0], counts_b[0]])


def rank_p(scores_a: Sequence[float], scores_b: Sequence[float]) -> float:
    """Return the two-sided exact p-value of the sum of mid-ranks (Wilcoxon 1945)."""
    doubled = np.rint(2 * stats.rankdata([*scores_a, *scores_b])).astype(int)
    observed = int(doubled[: len(scores_a)].sum())
    probability = _of_sums(tuple(doubled.tolist()), len(scores_a))
    return min(1.0, 2 * float(min(probability[: observed + 1].sum(), probability[observed:].sum())))


def shift_interval(
    scores_a: Sequence[float], scores_b: Sequence[float], level: float
) -> tuple[float, float, float]:
    """Return the median of all differences between two models' scores, and the ends of its interval.

    The interval (Hodges and Lehmann 1963; Moses) contains the shift between the two distributions with
    probability 1 - ``level`` or more. If there are too few seeds for an interval at this level, it is the
    full range of a difference of fractions, -1 to 1.
    """
    differences = np.sort(np.subtract.outer(np.asarray(scores_a), np.asarray(scores_b)).ravel())
    total = len(scores_a) + len(scores_b)
    probability = _of_sums(tuple(range(1, total + 1)), len(scores_a))
    least = len(scores_a) * (len(scores_a) + 1) // 2  # the sum of the lowest ranks
    left_out = int((np.cumsum(probability[least:]) <= level / 2).sum())
    middle = float(np.median(differences))
    if not left_out:
        return middle, -1.0, 1.0
    return middle, float(differences[left_out - 1]), float(differences[-left_out])


@cache
def _of_sums(ranks: tuple[int, ...], chosen: int) -> Array:
    """Return the probability of each sum of ``chosen`` ranks drawn without replacement."""
    ways = np.zeros((chosen + 1, sum(ranks) + 1))
    ways[0, 0] = 1
    for rank in ranks:
        for count in range(chosen, 0, -1):
            ways[count, rank:] += ways[count - 1, :-rank]
    return np.asarray(ways[chosen] / ways[chosen].sum())
