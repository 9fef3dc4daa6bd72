"""Differences that so many seeds would show, and seeds that would show a difference.

Both at 80% power, and under the same correction for the family as the verdict itself.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from analysis.stats.verdicts.family import MIN_SEEDS, Family
from analysis.stats.verdicts.max_statistic import LEVEL, POWER, Array
from analysis.stats.verdicts.pair_errors import small_sample_factor

MOST_SEEDS = 100
"""More seeds than this and a difference counts as out of reach."""


def detectable_differences(family: Family, margin: float = 0.0) -> Array:
    """Return the smallest true difference that each pair's test finds with 80% power, above the margin.

    The standard deviation is taken to be as it was estimated.
    """
    return np.maximum(family.error * _shifts(family, family.known_freedom, family.factor), margin)


def _shifts(family: Family, freedom: Array, factor: Array) -> Array:
    """Return detectable differences in standard errors."""
    shifts = np.zeros(len(freedom))
    for value in np.unique(factor):
        own = factor == value
        shifts[own] = family.statistic.detectable_shift(freedom[own], float(value))
    return shifts


def seeds_to_decide(family: Family, margin: float = 0.0) -> list[int | None]:
    """Return for each pair the fewest seeds of each model that would decide the observed difference.

    A difference above the margin would be decided as better or worse, one within it as equivalent. Deviations
    and the difference are taken to be as they were observed. None where ``MOST_SEEDS`` are not enough, and
    where the observed difference is exactly 0 and there is no margin.
    """
    low = np.full(len(family.pairs), MIN_SEEDS - 1)
    high = np.full(len(family.pairs), MOST_SEEDS + 1)
    while (high - low > 1).any():
        middle = (low + high) // 2
        enough, open_ = _decides(family, middle.astype(float), margin), high - low > 1
        low, high = np.where(open_ & ~enough, middle, low), np.where(open_ & enough, middle, high)
    return [None if seeds > MOST_SEEDS else int(seeds) for seeds in high]


def _decides(family: Family, seeds: Array, margin: float) -> npt.NDArray[np.bool_]:
    """Return for each pair if so many seeds of each model would decide it with 80% power."""
    error = family.error * np.sqrt(family.seeds / seeds)
    freedom = family.known_freedom * (seeds - 1) / (family.seeds - 1)
    factor = small_sample_factor(seeds, len(family.sizes), blocked=family.blocked)
    size = np.abs(family.difference)
    shown = error * _shifts(family, freedom, factor) <= size
    # An equivalent pair's mean difference must stay so far within the margin that the interval does.
    inside = margin - factor * error * family.statistic.critical(freedom, 2 * LEVEL)
    with np.errstate(invalid="ignore", divide="ignore"):
        within = ndtr((inside - size) / error) - ndtr((-inside - size) / error) >= POWER
    return np.where(size > margin, shown, within)
