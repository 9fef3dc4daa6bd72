from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from analysis.stats.ranking.rank_correlation import (
    detectable_rho,
    fisher_interval,
    permutation_p,
    rank_correlation,
    spearman,
)

FIRST = {name: [float(i)] for i, name in enumerate("abcdef")}
SECOND = {name: [value] for name, value in zip("abcdef", [1.0, 0.0, 2.0, 4.0, 3.0, 5.0], strict=True)}


def test_both_correlations_by_hand() -> None:
    """Two neighbours are exchanged twice: d^2 sums to 4, and 2 of 15 pairs are discordant."""
    found = rank_correlation(FIRST, SECOND)
    assert found is not None
    assert found.models == 6
    assert found.rho == pytest.approx(1 - 6 * 4 / (6 * 35))
    assert found.tau == pytest.approx(1 - 2 * 2 / 15)
    half = 1.959964 * math.sqrt((1 + found.rho**2 / 2) / 3)
    expected = [math.tanh(math.atanh(found.rho) + sign * half) for sign in (-1, 1)]
    assert (found.rho_low, found.rho_high) == pytest.approx(expected, rel=1e-6)
    half = 1.959964 * math.sqrt(0.437 / 2)
    expected = [math.tanh(math.atanh(found.tau) + sign * half) for sign in (-1, 1)]
    assert (found.tau_low, found.tau_high) == pytest.approx(expected, rel=1e-6)


def test_the_p_value_is_near_that_of_all_orders() -> None:
    x_N, y_N = (np.array([v for (v,) in scores.values()]) for scores in (FIRST, SECOND))
    exact = stats.permutation_test(
        (x_N,), lambda x: stats.spearmanr(x, y_N).statistic, permutation_type="pairings", n_resamples=np.inf
    ).pvalue
    assert permutation_p(x_N, y_N) == pytest.approx(exact, abs=0.01)


def test_models_that_one_side_lacks_are_left_out_and_few_are_not_compared() -> None:
    assert rank_correlation({**FIRST, "other": [9.0]}, SECOND) == rank_correlation(FIRST, SECOND)
    few = {name: FIRST[name] for name in "abcd"}
    assert rank_correlation(few, SECOND) is None


def test_seeds_that_overlap_widen_the_range_and_equal_ones_do_not() -> None:
    sure = rank_correlation(FIRST, SECOND)
    loose = rank_correlation({n: [v - 2, v + 2] for n, (v,) in FIRST.items()}, SECOND)
    assert sure is not None
    assert loose is not None
    assert sure.seeds_low == sure.seeds_high == pytest.approx(sure.rho)
    assert loose.seeds_low < loose.rho - 0.1
    assert loose.rho == pytest.approx(sure.rho)


def test_scores_without_spread_have_no_correlation() -> None:
    found = rank_correlation({name: [1.0] for name in FIRST}, SECOND)
    assert found is not None
    assert all(math.isnan(v) for v in (found.rho, found.rho_low, found.tau, found.p, found.seeds_low))


def test_equal_orders_are_not_taken_for_certainty() -> None:
    found = rank_correlation(FIRST, FIRST)
    assert found is not None
    assert found.rho == found.rho_high == 1
    assert found.rho_low < 0.95


def test_the_interval_covers_the_rho_of_few_models() -> None:
    rng, rho, count = np.random.default_rng(3), 0.8, 8
    r = 2 * math.sin(math.pi * rho / 6)  # of normal scores, Pearson 1907
    covered = []
    for _ in range(500):
        x_N = rng.normal(size=count)
        y_N = r * x_N + math.sqrt(1 - r * r) * rng.normal(size=count)
        found = spearman(x_N, y_N)
        low, high = fisher_interval(found, math.sqrt((1 + found**2 / 2) / (count - 3)))
        covered.append(low <= rho <= high)
    assert 0.92 <= np.mean(covered) <= 0.98


@pytest.mark.parametrize(("models", "expected"), [(7, 0.93), (11, 0.82), (50, 0.40)])
def test_more_models_show_smaller_correlations(models: int, expected: float) -> None:
    assert detectable_rho(models) == pytest.approx(expected, abs=0.01)
