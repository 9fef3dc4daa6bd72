"""Boschloo's and Wilcoxon's exact tests against SciPy's, ties by permutations, and the shift interval."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from analysis.stats.verdicts.exact_tests import boschloo, boschloo_table, rank_p, shift_interval


@pytest.mark.parametrize(
    ("first", "second"), [((10, 10), (3, 10)), ((5, 5), (0, 5)), ((2, 7), (9, 12)), ((4, 9), (4, 9))]
)
def test_boschloo_agrees_with_scipy(first: tuple[int, int], second: tuple[int, int]) -> None:
    table = [[first[0], second[0]], [first[1] - first[0], second[1] - second[0]]]
    expected = min(1.0, stats.boschloo_exact(table).pvalue)
    assert boschloo(first, second) == pytest.approx(expected, rel=1e-3)
    assert boschloo(second, first) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
def test_boschloo_holds_its_level_exactly(rate: float) -> None:
    weights = stats.binom.pmf(np.arange(13), 12, rate)
    assert weights @ (boschloo_table(12, 12) < 0.05) @ weights <= 0.05


@pytest.mark.parametrize(("size", "other"), [(5, 5), (5, 8), (9, 6)])
def test_without_ties_it_is_scipys_exact_test(size: int, other: int) -> None:
    rng = np.random.default_rng(size)
    for shift in (0.0, 0.5, 2.0, 9.0):
        first, second = (rng.normal(size=size) + shift).tolist(), rng.normal(size=other).tolist()
        expected = stats.mannwhitneyu(first, second, method="exact").pvalue
        assert rank_p(first, second) == pytest.approx(expected)
        assert rank_p(second, first) == pytest.approx(expected)


@pytest.mark.parametrize(
    "first", [[1, 1, 1, 0.3, 1], [0.3, 0.3, 1, 1, 0.3], [0.3] * 5, [1, 0.7, 0.7, 0.3, 1]]
)
def test_ties_are_counted_by_all_choices_of_seeds(first: list[float]) -> None:
    second = [0.3, 0.3, 0.7, 0.3, 1]

    def rank_sum(one: np.ndarray, two: np.ndarray) -> float:
        return float(stats.rankdata([*one, *two])[: len(one)].sum())

    found = stats.permutation_test((first, second), rank_sum, n_resamples=10_000, vectorized=False)
    assert rank_p(first, second) == pytest.approx(found.pvalue)


def test_all_scores_alike_are_no_difference() -> None:
    assert rank_p([1.0] * 5, [1.0] * 6) == 1.0


def test_the_interval_by_hand() -> None:
    # Of five and five the two lowest sums have probabilities 1/252 each: two are left out at each end.
    first, second = [10.0, 11, 12, 13, 14], [0.0, 1, 2, 3, 4.5]
    differences = sorted(a - b for a in first for b in second)
    assert shift_interval(first, second, 2 * 2 / 252) == (10.0, differences[1], differences[-2])
    assert shift_interval(first, second, 2 / 252) == (10.0, differences[0], differences[-1])
    assert shift_interval(first, second, 1.9 / 252) == (10.0, -1.0, 1.0), "so few seeds have no such interval"


def test_the_interval_holds_the_shift_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        _, low, high = shift_interval(rng.exponential(size=6) + 0.4, rng.exponential(size=5), 0.1)
        held += low <= 0.4 <= high
    assert 0.88 < held / 1000 < 0.97
