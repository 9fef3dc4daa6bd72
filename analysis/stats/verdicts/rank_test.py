"""Wilcoxon's rank-sum test of two models' scores, exact with ties, and the interval that belongs to it.

Where scores jump from seed to seed, as they do when some runs find the solution of a task, they have no
normal distribution, but they can be ranked. Solve counts alone cannot tell a model that reaches 0.7 in each
run from one that stays at 0.3, if neither solves the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from scipy import stats

from analysis.stats.verdicts.max_statistic import Array

TEST = "Wilcoxon, scores"
MIN_SEEDS = 5
"""With fewer seeds of each model the smallest p-value is 0.03 or more: nothing would be found."""


def rank_p(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided exact p-value of the sum of mid-ranks (Wilcoxon 1945)."""
    doubled = np.rint(2 * stats.rankdata([*first, *second])).astype(int)
    observed = int(doubled[: len(first)].sum())
    probability = _of_sums(tuple(doubled.tolist()), len(first))
    return min(1.0, 2 * float(min(probability[: observed + 1].sum(), probability[observed:].sum())))


def shift_interval(
    first: Sequence[float], second: Sequence[float], level: float
) -> tuple[float, float, float]:
    """Return the median of all differences between two models' scores, and the ends of its interval.

    The interval (Hodges and Lehmann 1963; Moses) holds the shift between the two distributions with
    probability 1 - ``level`` or more. Where so few seeds have no interval at this level, it is all that
    fractions can differ by, -1 to 1.
    """
    differences = np.sort(np.subtract.outer(np.asarray(first), np.asarray(second)).ravel())
    both = len(first) + len(second)
    probability = _of_sums(tuple(range(1, both + 1)), len(first))
    least = len(first) * (len(first) + 1) // 2  # the sum of the lowest ranks
    left_out = int((np.cumsum(probability[least:]) <= level / 2).sum())
    middle = float(np.median(differences))
    if not left_out:
        return middle, -1.0, 1.0
    return middle, float(differences[left_out - 1]), float(differences[-left_out])


@cache
def _of_sums(ranks: tuple[int, ...], chosen: int) -> Array:
    """Return the probability of each sum of ``chosen`` of the ranks, all choices being as likely."""
    ways = np.zeros((chosen + 1, sum(ranks) + 1))
    ways[0, 0] = 1
    for rank in ranks:
        for count in range(chosen, 0, -1):
            ways[count, rank:] += ways[count - 1, :-rank]
    return np.asarray(ways[chosen] / ways[chosen].sum())
