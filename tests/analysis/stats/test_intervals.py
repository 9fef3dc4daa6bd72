from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from analysis.stats.intervals import compare_arms, detectable_difference, holm, mean_interval, welch_error


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


def test_holm_by_hand() -> None:
    # Sorted: .01 * 4, .02 * 3, .03 * 2 (held at .06), .9 * 1.
    assert holm([0.03, 0.01, 0.9, 0.02]) == pytest.approx([0.06, 0.04, 0.9, 0.06])
    assert holm([0.5, 0.6]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


@pytest.mark.parametrize("n", [3, 5, 10])
def test_detectable_difference_is_found_four_times_in_five(n: int) -> None:
    shift = detectable_difference(0.2 / math.sqrt(n), n - 1)
    assert shift is not None
    gains = np.random.default_rng(1).normal(shift, 0.2, (4000, n))
    found = stats.ttest_1samp(gains, 0.0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.80, abs=0.025)


def test_detectable_difference_needs_two_seeds() -> None:
    assert detectable_difference(0.2, 0) is None


def test_a_pair_agrees_with_the_paired_t_test() -> None:
    a = {0: 2.40, 1: 2.50, 2: 2.30, 3: 2.45}
    b = {0: 2.45, 1: 2.58, 2: 2.33, 3: 2.51, 9: 1.0}  # seed 9 has no partner
    [pair] = compare_arms({"a": a, "b": b}, "lower")
    oracle = stats.ttest_rel([b[s] for s in a], [a[s] for s in a])
    assert (pair.better, pair.worse, pair.n) == ("a", "b", 4)
    assert pair.p == pytest.approx(oracle.pvalue)
    assert pair.gain == pytest.approx(0.055)
    assert pair.half_width == pytest.approx(0.055 - oracle.confidence_interval(0.95).low)
    assert pair.separated


def test_direction_decides_who_is_better() -> None:
    scores = {"a": {0: 0.5, 1: 0.6, 2: 0.55}, "b": {0: 0.8, 1: 0.91, 2: 0.84}}
    assert compare_arms(scores, "higher")[0].better == "b"
    assert compare_arms(scores, "lower")[0].better == "a"
    with pytest.raises(ValueError, match="direction=up"):
        compare_arms(scores, "up")


def test_two_seeds_separate_nothing_however_far_apart() -> None:
    [pair] = compare_arms({"a": {0: 1.0, 1: 1.0}, "b": {0: 9.0, 1: 9.0}}, "lower")
    assert pair.p == 0.0
    assert not pair.separated


def test_holm_counts_every_pair() -> None:
    # Alone, a and b are separated; beside three arms of noise, the same gap is not.
    rng = np.random.default_rng(3)
    a = dict(enumerate([2.400, 2.401, 2.402]))
    b = dict(enumerate([2.410, 2.418, 2.416]))
    alone = compare_arms({"a": a, "b": b}, "lower")[0]
    crowd = {str(i): dict(enumerate(rng.normal(2.4, 0.1, 3))) for i in range(3)}
    pairs = compare_arms({"a": a, "b": b, **crowd}, "lower")
    among = next(p for p in pairs if {p.better, p.worse} == {"a", "b"})
    assert alone.separated
    assert among.p > alone.p
    assert not among.separated


def test_a_gain_below_the_margin_is_no_gain() -> None:
    scores = {"a": {0: 2.0, 1: 2.1, 2: 2.2}, "b": {0: 2.0010, 1: 2.1011, 2: 2.2009}}
    assert compare_arms(scores, "lower", margin=0.0)[0].separated
    assert not compare_arms(scores, "lower", margin=0.002)[0].separated


def test_equal_arms_and_arms_without_scores() -> None:
    same = {0: 1.0, 1: 1.0, 2: 1.0}
    [pair] = compare_arms({"a": same, "b": same}, "higher")
    assert (pair.gain, pair.p, pair.separated) == (0.0, 1.0, False)
    [pair] = compare_arms({"a": same, "b": {0: math.nan, 1: math.nan}}, "higher")
    assert pair.n == 0
    assert math.isnan(pair.gain)
    assert not pair.separated


def test_arms_without_common_seeds_are_compared_by_welch() -> None:
    a = {0: 2.40, 1: 2.50, 2: 2.30, 3: 2.45, 4: math.nan}
    b = {10: 2.55, 11: 2.75, 12: 2.63}
    [pair] = compare_arms({"a": a, "b": b}, "lower")
    oracle = stats.ttest_ind([2.55, 2.75, 2.63], [2.40, 2.50, 2.30, 2.45], equal_var=False)
    assert (pair.better, pair.n, pair.paired) == ("a", 3, False)
    assert pair.p == pytest.approx(oracle.pvalue)
    assert pair.half_width == pytest.approx(pair.gain - oracle.confidence_interval(0.95).low)
    assert welch_error([2.55, 2.75, 2.63], [2.40, 2.50, 2.30, 2.45])[1] == pytest.approx(oracle.df)


def test_two_common_seeds_are_paired_and_one_seed_tests_nothing() -> None:
    a, b = {0: 2.4, 1: 2.5, 2: 2.6}, {1: 2.45, 2: 2.5, 9: 7.0}
    [pair] = compare_arms({"a": a, "b": b}, "lower")
    assert pair.paired
    assert pair.gain == pytest.approx(0.075)
    [pair] = compare_arms({"a": a, "b": {9: 7.0}}, "lower")
    assert math.isnan(pair.p)
    assert not pair.separated


def test_unpaired_arms_without_spread() -> None:
    [pair] = compare_arms({"a": {0: 1.0, 1: 1.0}, "b": {2: 1.0, 3: 1.0}}, "higher")
    assert (pair.gain, pair.p) == (0.0, 1.0)


def test_welch_covers_the_truth_in_95_of_100_studies_of_unequal_spread() -> None:
    rng = np.random.default_rng(2)
    firsts, seconds = rng.normal(1.3, 0.3, (3000, 4)), rng.normal(1.0, 0.1, (3000, 7))
    covered = 0
    for first, second in zip(firsts, seconds, strict=True):
        error, freedom = welch_error(first.tolist(), second.tolist())
        covered += abs(first.mean() - second.mean() - 0.3) <= stats.t.ppf(0.975, freedom) * error
    assert covered / 3000 == pytest.approx(0.95, abs=0.015)


def test_welch_finds_its_detectable_difference_four_times_in_five() -> None:
    # Equal spreads and sizes: the degrees of freedom are close to 2 (n - 1).
    shift = detectable_difference(0.2 * math.sqrt(2 / 5), 8)
    assert shift is not None
    rng = np.random.default_rng(3)
    found = stats.ttest_ind(rng.normal(shift, 0.2, (4000, 5)), rng.normal(0, 0.2, (4000, 5)), axis=1)
    assert (found.pvalue < 0.05).mean() == pytest.approx(0.80, abs=0.025)
