from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from archbench.analysis.stats.intervals import (
    is_share,
    mean_interval,
    rate_difference_interval,
    share_interval,
    wilson_interval,
)


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


def test_an_interval_of_a_share_by_hand_stays_within_0_and_1() -> None:
    low, high = share_interval([0.6, 0.95, 0.99])
    mean, error = 2.54 / 3, np.std([0.6, 0.95, 0.99], ddof=1) / 3**0.5
    half = 4.302653 * error / (mean * (1 - mean))
    centre = math.log(mean / (1 - mean))
    assert low == pytest.approx(1 / (1 + math.exp(half - centre)))
    assert high == pytest.approx(1 / (1 + math.exp(-half - centre)))
    assert 0 < low < mean < high < 1


def test_seeds_that_agree_by_chance_have_the_interval_of_the_items() -> None:
    low, high = share_interval([0.5, 0.5, 0.5], items=100)
    assert high - 0.5 == pytest.approx(0.5 - low)
    assert high == pytest.approx(0.5 + 1.96 * math.sqrt(0.25 / 300), abs=1e-3)
    low, high = share_interval([1.0, 1.0, 1.0], items=100)
    assert 0.9 < low < high < 1.0
    assert share_interval([1.0, 1.0]) == (1.0, 1.0)  # items are not known
    assert all(math.isnan(end) for end in share_interval([0.5]))


def test_only_fractions_are_shares() -> None:
    assert is_share("share", [0.0, 1.0])
    assert not is_share("share", [-0.2, 0.5])  # a correlation
    assert not is_share("bits/byte", [0.5])


@pytest.mark.parametrize("n", [3, 5, 10])
def test_the_interval_of_a_share_covers_the_truth(n: int) -> None:
    draws = np.random.default_rng(0).beta(8, 2, (1500, n))
    covered = np.mean([low <= 0.8 <= high for low, high in (share_interval(d.tolist()) for d in draws)])
    assert 0.925 < covered < 0.985


def test_wilson_and_newcombe_by_their_papers() -> None:
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert rate_difference_interval((56, 70), (48, 80)) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    assert rate_difference_interval((10, 10), (0, 20)) == pytest.approx((0.6791, 1.0), abs=1e-4)
