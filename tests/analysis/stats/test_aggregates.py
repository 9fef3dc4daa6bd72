"""Aggregates over tasks: values by hand and against SciPy, coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from archbench.analysis.stats.aggregates import (
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
)


def test_interquartile_mean_by_hand() -> None:
    # 8 runs in order: .1 .2 | .3 .4 .5 .6 | .7 .9; the middle half has the mean .45.
    found = interquartile_mean([[0.9, 0.1, 0.4, 0.3], [0.2, 0.5, 0.6, 0.7]], resamples=200)
    assert found.value == pytest.approx(0.45)
    assert found.low < 0.45 < found.high


def test_improvement_is_mann_whitney_over_tasks() -> None:
    a, b = [[0.5, 0.7, 0.9], [0.2, 0.2]], [[0.6, 0.7], [0.2, 0.1, 0.3]]
    expected = np.mean(
        [stats.mannwhitneyu(x, y).statistic / (len(x) * len(y)) for x, y in zip(a, b, strict=True)]
    )
    found = probability_of_improvement(a, b, resamples=200)
    assert found.value == pytest.approx(expected)
    assert probability_of_improvement(b, a, resamples=200).value == pytest.approx(1 - expected)


def test_profile_by_hand() -> None:
    # Above .5: half the runs of the first task and all of the second; each task counts the same.
    found = performance_profile([[0.4, 0.6], [0.7, 0.8, 0.9]], [0.0, 0.5, 0.85, 1.0])
    assert found.tolist() == pytest.approx([1.0, 0.75, (0 + 1 / 3) / 2, 0.0])


def test_tasks_are_strata() -> None:
    # Spread between tasks is none of the seeds': without any within a task the interval has no width.
    found = interquartile_mean([[0.1, 0.1], [0.5, 0.5], [0.8, 0.8]], resamples=200)
    assert (found.low, found.high) == pytest.approx((found.value, found.value))


def test_one_seed_has_no_interval_over_tasks() -> None:
    found = interquartile_mean([[0.1], [0.5, 0.6], [0.8, 0.7]])
    assert math.isnan(found.low)
    assert found.value == pytest.approx(np.mean([0.5, 0.6, 0.7]))


def test_intervals_are_repeatable() -> None:
    tasks = np.random.default_rng(0).random((4, 3)).tolist()
    assert interquartile_mean(tasks, resamples=300) == interquartile_mean(tasks, resamples=300)


def coverage(seeds: int, studies: int) -> float:
    """How often the interval for ten tasks holds what endless seeds would give."""
    rng, centres = np.random.default_rng(seeds), np.linspace(0.2, 0.9, 10)
    truth = stats.trim_mean(np.concatenate([rng.normal(c, 0.05, 100_000) for c in centres]), 0.25)
    held = 0
    for _ in range(studies):
        found = interquartile_mean([rng.normal(c, 0.05, seeds).tolist() for c in centres], resamples=300)
        held += found.low <= truth <= found.high
    return held / studies


def test_interval_over_tasks_covers_the_truth_nearly_as_often_as_it_says() -> None:
    assert 0.86 < coverage(10, studies=60) <= 1.0


@pytest.mark.full
@pytest.mark.parametrize(("seeds", "expected"), [(3, 0.95), (5, 0.95), (10, 0.95)])
def test_coverage_is_what_the_page_says(seeds: int, expected: float) -> None:
    assert coverage(seeds, studies=400) == pytest.approx(expected, abs=0.04)


@pytest.mark.full
@pytest.mark.parametrize(("seeds", "expected"), [(3, 0.95), (10, 0.95)])
def test_coverage_of_the_probability_of_improvement(seeds: int, expected: float) -> None:
    rng, gaps = np.random.default_rng(seeds), np.linspace(-0.05, 0.1, 6)
    truth = stats.norm.cdf(gaps / (0.05 * math.sqrt(2))).mean()
    held = 0
    for _ in range(300):
        drawn = ([rng.normal(g, 0.05, seeds).tolist() for g in shift] for shift in (gaps, 0 * gaps))
        found = probability_of_improvement(*drawn, resamples=300)
        held += found.low <= truth <= found.high
    assert held / 300 == pytest.approx(expected, abs=0.04)
