"""Means and fractions over seeds with intervals, and margins below which models count as equivalent.

Intervals are Student's: a percentile bootstrap covers 77% instead of 95% at three seeds; the t-interval
covers 95% at every number of seeds. Intervals of fractions, such as an accuracy or a solve rate, stay
within 0 and 1. Those of differences between models are in ``verdicts.verdict``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special, stats

Array = npt.NDArray[np.float64]
CONFIDENCE = 0.95

SHARES = ("answer_accuracy", "accuracy", "macro_f1", "matthews", "entity_f1", "tag_accuracy", "exact_match")
MARGINS = {
    "bits_per_byte": 0.002,
    "excess_bits": 0.002,
    "pearson": 0.01,
    "spearman": 0.01,
    **dict.fromkeys(SHARES, 0.01),
}
"""Equivalence margin of each metric; 0 (never equivalent) for metrics not listed. ``study.margin`` overrides
it."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over seeds with its two-sided 95% t-interval."""

    mean: float
    half_width: float | None
    """Half of the interval's width; None with fewer than two values."""
    n: int


def ratio_residuals(numerator_G: Array, denominator_G: Array) -> Array:
    """Return the contributions (G,) of the groups of items to the error of a ratio of sums, linearised."""
    ratio = numerator_G.sum() / denominator_G.sum()
    return np.asarray((numerator_G - ratio * denominator_G) / denominator_G.sum())


def mean_interval(values: Sequence[float]) -> Estimate:
    """Return mean and 95% t-interval. The caller removes NaN values; the mean of no values is NaN."""
    n = len(values)
    if n < 2:
        return Estimate(mean=float(values[0]) if n else math.nan, half_width=None, n=n)
    error = float(np.std(values, ddof=1)) / math.sqrt(n)
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))
    return Estimate(mean=float(np.mean(values)), half_width=quantile * error, n=n)


def is_share(unit: str | None, values: Sequence[float]) -> bool:
    """Return True if scores are fractions between 0 and 1."""
    return unit == "share" and all(0 <= value <= 1 for value in values)


def share_interval(values: Sequence[float], items: float = math.nan) -> tuple[float, float]:
    """Return the 95% interval of the mean of fractions over seeds, computed for the logit of the mean.

    The error of the logit follows from that of the mean by the delta method, with Student's quantile. The
    interval is at least as wide as the binomial interval of all items, so that it is not empty if seeds agree
    by chance; a mean of 0 or 1 is moved inwards by half an item. NaN below two seeds.

    Args:
        values: a fraction for each seed.
        items: number of test items of each seed, such as examples; NaN (unknown) disables the lower limit of
            the width.
    """
    seeds = len(values)
    if seeds < 2:
        return math.nan, math.nan
    estimate = mean_interval(values)
    mean, half = estimate.mean, estimate.half_width or 0.0
    if math.isfinite(items) and items > 0:
        trials = seeds * items
        mean = min(max(mean, 0.5 / trials), 1 - 0.5 / trials)
        floor = math.sqrt(mean * (1 - mean) / trials)
        half = max(half, float(stats.norm.ppf((1 + CONFIDENCE) / 2)) * floor)
    if not 0 < mean < 1:
        return mean, mean
    half /= mean * (1 - mean)
    ends = special.expit(special.logit(mean) + np.array([-half, half]))
    return float(ends[0]), float(ends[1])


def binomial_error(fraction: float, items: float) -> float:
    """Return the standard error of a fraction of ``items`` test items; NaN if their number is unknown."""
    return math.sqrt(max(fraction * (1 - fraction), 0.0) / items) if items > 0 else math.nan


def wilson_interval(successes: int, n: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the two-sided interval of a fraction, ``successes`` of ``n`` (Wilson 1927)."""
    interval = stats.binomtest(successes, n).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)


def rate_difference_interval(
    minuend: tuple[int, int], subtrahend: tuple[int, int], confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return the interval of the difference of two rates (Newcombe 1998, method 10).

    Args:
        minuend: successes and number of trials.
        subtrahend: successes and number of trials of the rate that is subtracted.
    """
    (low_1, high_1), (low_2, high_2) = (
        wilson_interval(*counts, confidence) for counts in (minuend, subtrahend)
    )
    rate_1, rate_2 = minuend[0] / minuend[1], subtrahend[0] / subtrahend[1]
    below = math.hypot(rate_1 - low_1, high_2 - rate_2)
    above = math.hypot(high_1 - rate_1, rate_2 - low_2)
    return max(-1.0, rate_1 - rate_2 - below), min(1.0, rate_1 - rate_2 + above)
