"""Aggregates over tasks: interquartile mean, performance profile, probability of improvement.

After Agarwal et al. 2021 (arXiv 2108.13264). Scores are fractions (an accuracy, 1 is best), given as one list
of seeds for each task. Intervals are Student's, with the standard error of a stratified bootstrap: seeds are
resampled within their task, so the tasks are fixed. With n seeds, a bootstrap underestimates the standard
error by the factor sqrt((n - 1) / n), which is corrected; each task adds n - 1 degrees of freedom.

Of 300 simulated intervals for the interquartile mean over ten tasks, 95% contained the true value with
3 seeds, 96% with 5 and 95% with 10. ``tests/analysis/stats/test_aggregates.py`` repeats the simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from archbench.analysis.stats.intervals import CONFIDENCE

RESAMPLES = 10_000


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value with its 95% interval; both ends are NaN if a task has fewer than two seeds."""

    value: float
    low: float
    high: float


def interquartile_mean(tasks: Sequence[Sequence[float]], *, resamples: int = RESAMPLES) -> Interval:
    """Return the mean of the middle half of all runs: less noisy than the median, robust to outliers."""

    def middle(*drawn: np.ndarray, axis: int) -> np.ndarray:
        return np.asarray(stats.trim_mean(np.concatenate(drawn, axis=axis), 0.25, axis=axis))

    return _bootstrap(tasks, middle, resamples)


def probability_of_improvement(
    tasks: Sequence[Sequence[float]], baseline: Sequence[Sequence[float]], *, resamples: int = RESAMPLES
) -> Interval:
    """Return the probability that a run of the first arm beats a run of the second; ties count half.

    Args:
        tasks: for each task, its scores under the first arm.
        baseline: the same tasks in the same order under the second arm.
    """
    count = len(tasks)

    def mean_of_tasks(*drawn: np.ndarray, axis: int) -> np.ndarray:
        assert axis == -1
        wins = []
        for score, baseline_score in zip(drawn[:count], drawn[count:], strict=True):
            gaps = score[..., :, None] - baseline_score[..., None, :]
            wins.append(((gaps > 0) + 0.5 * (gaps == 0)).mean(axis=(-2, -1)))
        return np.asarray(np.mean(wins, axis=0))

    return _bootstrap([*tasks, *baseline], mean_of_tasks, resamples)


def performance_profile(tasks: Sequence[Sequence[float]], thresholds: Sequence[float]) -> np.ndarray:
    """Return for each threshold the fraction of runs that score more, as the mean over tasks."""
    above = [np.mean(np.array(scores)[:, None] > np.array(thresholds), axis=0) for scores in tasks]
    return np.asarray(np.mean(above, axis=0))


def _bootstrap(
    samples: Sequence[Sequence[float]], statistic: Callable[..., np.ndarray], resamples: int
) -> Interval:
    """Return the statistic with its interval; SciPy resamples each sample separately."""
    arrays = [np.asarray(sample, dtype=float) for sample in samples]
    value, fewest = float(statistic(*arrays, axis=-1)), min(len(array) for array in arrays)
    if fewest < 2:
        return Interval(value=value, low=math.nan, high=math.nan)
    error = stats.bootstrap(
        arrays, statistic, n_resamples=resamples, method="percentile", vectorized=True, batch=1000,
        rng=np.random.default_rng(0),
    ).standard_error  # fmt: skip
    freedom = sum(len(array) - 1 for array in arrays)
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
    half = quantile * float(error) * math.sqrt(fewest / (fewest - 1))
    return Interval(value=value, low=max(value - half, 0.0), high=min(value + half, 1.0))
