"""Minimum detectable differences for a number of seeds, and seeds needed to detect a difference.

Both are for 80% power, and with the same correction for the family as the verdict.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from analysis.stats.verdicts.family import MIN_SEEDS, Family
from analysis.stats.verdicts.max_statistic import LEVEL, POWER, Array

MOST_SEEDS = 100
"""Largest number of seeds that is considered."""


def detectable_differences(family: Family, margin: float = 0.0) -> Array:
    """Return the smallest true difference that each pair's test finds with 80% power, above the margin.

    The standard deviation is assumed to be the estimated one.
    """
    return np.maximum(family.tests.detectable(), margin)


def seeds_to_decide(family: Family, margin: float = 0.0) -> list[int | None]:
    """Return for each pair the fewest seeds of each model that would decide the observed difference.

    A difference above the margin would be decided as better or worse, one within it as equivalent. Deviations
    and the difference are assumed to be the observed ones. None if ``MOST_SEEDS`` are not enough, or if the
    observed difference is exactly 0 and there is no margin.
    """
    fewest: list[int | None] = [None] * len(family.pairs)
    for seeds in range(MIN_SEEDS, MOST_SEEDS + 1):
        for pair in np.flatnonzero(_decides(family, seeds, margin)):
            fewest[pair] = fewest[pair] or seeds
        if None not in fewest:
            break
    return fewest


def _decides(family: Family, seeds: int, margin: float) -> npt.NDArray[np.bool_]:
    """Return for each pair whether ``seeds`` seeds of each model would decide it with 80% power."""
    tests, size = family.planned(seeds), np.abs(family.difference)
    with np.errstate(invalid="ignore", divide="ignore"):
        is_detectable = tests.detectable() <= size
        # A pair is equivalent if the full interval, not only the mean difference, is within the margin.
        inside = margin - tests.half_widths(2 * LEVEL)
        error = np.fmin(tests.error, tests.own_error) if tests.own_share else tests.error
        within = ndtr((inside - size) / error) - ndtr((-inside - size) / error) >= POWER
    return np.where(size > margin, is_detectable, within)
