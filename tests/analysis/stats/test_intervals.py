from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from analysis.stats.intervals import mean_interval


def test_interval_agrees_with_scipy() -> None:
    values = [2.41, 2.38, 2.44, 2.40]
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    estimate = mean_interval(values)
    assert estimate.half_width is not None
    assert estimate.mean - estimate.half_width == pytest.approx(low)
    assert estimate.mean + estimate.half_width == pytest.approx(high)
    assert estimate.n == 4


def test_one_seed_has_no_interval() -> None:
    assert mean_interval([2.4]).half_width is None
    assert mean_interval([2.4]).mean == 2.4
    assert math.isnan(mean_interval([]).mean)


@pytest.mark.parametrize("n", [2, 3, 10])
def test_interval_covers_the_truth_in_95_of_100_studies(n: int) -> None:
    draws = np.random.default_rng(0).normal(1.0, 0.3, (2000, n))
    estimates = [mean_interval(d.tolist()) for d in draws]
    covered = np.mean([abs(e.mean - 1.0) <= (e.half_width or 0.0) for e in estimates])
    assert covered == pytest.approx(0.95, abs=0.015)
