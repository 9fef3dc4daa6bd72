"""Means over seeds with their intervals, and the margins below which models count as equivalent.

Intervals are Student's: a percentile bootstrap covers 77% instead of 95% at three seeds; the t-interval
covers 95% at every number of seeds. Intervals of fractions are in ``shares``, those of differences between
models in ``verdicts.verdict``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

Array = npt.NDArray[np.float64]
CONFIDENCE = 0.95

SHARES = ("answer_accuracy", "accuracy", "macro_f1", "matthews", "entity_f1", "tag_accuracy", "exact_match")
MARGINS = {"bits_per_byte": 0.002, "pearson": 0.01, "spearman": 0.01, **dict.fromkeys(SHARES, 0.01)}
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
