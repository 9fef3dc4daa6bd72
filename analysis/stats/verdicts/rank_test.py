"""Wilcoxon's rank-sum test of two models' scores, exact with ties, and the corresponding interval.

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

TEST = "Wilcoxon, scores"
MIN_SEEDS = 5
"""With fewer seeds of each model, the smallest possible p-value is 0.03 or more, too large to reject."""


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
