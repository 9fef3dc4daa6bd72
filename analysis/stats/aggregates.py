"""One number over many tasks: interquartile mean, performance profile, probability of improvement.

After Agarwal et al. 2021 (arXiv 2108.13264). Scores are fractions (an accuracy, 1 is best), given as one list
of seeds for each task. Intervals are bias-corrected and accelerated bootstraps, stratified: seeds are drawn
within their task, so that the tasks themselves are taken as given.

With few seeds such an interval is too narrow. Of 1,500 simulated intervals for the interquartile mean over
ten tasks, 85% held the truth with 3 seeds, 90% with 5 and 92% with 10; of 300 for the probability of
improvement over six tasks, 90%, 93% and 95%. ``tests/analysis/stats/test_aggregates.py`` simulates both.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.stats.intervals import CONFIDENCE

RESAMPLES = 10_000


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A number with its 95% interval, whose ends are NaN where no task has two seeds."""

    value: float
    low: float
    high: float


def interquartile_mean(tasks: Sequence[Sequence[float]], *, resamples: int = RESAMPLES) -> Interval:
    """The mean of the middle half of all runs: less noisy than the median, robust to extremes."""

    def middle(*drawn: np.ndarray, axis: int) -> np.ndarray:
        return np.asarray(stats.trim_mean(np.concatenate(drawn, axis=axis), 0.25, axis=axis))

    return _bootstrap(tasks, middle, resamples)


def probability_of_improvement(
    tasks: Sequence[Sequence[float]], others: Sequence[Sequence[float]], *, resamples: int = RESAMPLES
) -> Interval:
    """Return the probability that a run of the first arm beats one of the other; ties count half.

    Args:
        tasks: for each task, its scores under the first arm.
        others: the same tasks in the same order under the other arm.
    """
    count = len(tasks)

    def mean_of_tasks(*drawn: np.ndarray, axis: int) -> np.ndarray:
        assert axis == -1
        wins = []
        for first, second in zip(drawn[:count], drawn[count:], strict=True):
            gaps = first[..., :, None] - second[..., None, :]
            wins.append(((gaps > 0) + 0.5 * (gaps == 0)).mean(axis=(-2, -1)))
        return np.asarray(np.mean(wins, axis=0))

    return _bootstrap([*tasks, *others], mean_of_tasks, resamples)


def performance_profile(tasks: Sequence[Sequence[float]], thresholds: Sequence[float]) -> np.ndarray:
    """Return for each threshold the fraction of runs that score more, as the mean over tasks."""
    above = [np.mean(np.array(scores)[:, None] > np.array(thresholds), axis=0) for scores in tasks]
    return np.asarray(np.mean(above, axis=0))


def _bootstrap(
    samples: Sequence[Sequence[float]], statistic: Callable[..., np.ndarray], resamples: int
) -> Interval:
    """The statistic with its stratified BCa interval; SciPy draws each sample for itself."""
    arrays = [np.asarray(sample, dtype=float) for sample in samples]
    value = float(statistic(*arrays, axis=-1))
    if min(len(array) for array in arrays) < 2:
        return Interval(value=value, low=math.nan, high=math.nan)
    with warnings.catch_warnings():
        # All draws alike, as where every run solves its task: the interval has no width.
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        warnings.simplefilter("ignore", RuntimeWarning)
        found = stats.bootstrap(
            arrays, statistic, n_resamples=resamples, confidence_level=CONFIDENCE, method="BCa",
            vectorized=True, batch=1000, random_state=np.random.default_rng(0),
        ).confidence_interval  # fmt: skip
    low, high = float(found.low), float(found.high)
    if math.isnan(low) or math.isnan(high):
        low = high = value
    return Interval(value=value, low=low, high=high)
