"""Standard errors of pairs against SciPy's tests."""

import numpy as np
import pytest
from scipy import stats

from archbench.analysis.stats.verdicts.pair_errors import paired, welch

PAIR = np.array([[0, 1]])


def test_welchs_errors_are_those_of_scipy() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=7), 3 * rng.normal(size=4)
    errors = welch(np.array([a.var(ddof=1), b.var(ddof=1)]), np.array([7.0, 4.0]), PAIR)
    oracle = stats.ttest_ind(a, b, equal_var=False)
    assert errors.freedom[0] == pytest.approx(oracle.df)
    assert errors.error[0] == pytest.approx((a.mean() - b.mean()) / oracle.statistic)


def test_paired_errors_are_those_of_scipy() -> None:
    score_KN = np.random.default_rng(0).normal(size=(2, 6))
    errors, oracle = paired(score_KN, PAIR), stats.ttest_rel(*score_KN)
    assert errors.freedom[0] == oracle.df
    assert errors.error[0] == pytest.approx((score_KN[0] - score_KN[1]).mean() / oracle.statistic)


def test_models_without_spread_have_no_error() -> None:
    errors = welch(np.zeros(2), np.full(2, 5.0), PAIR)
    assert (errors.variance[0], errors.freedom[0]) == (0, 1)
    assert np.isnan(errors.positive().error[0])


def test_equal_differences_within_seeds_have_no_error_despite_rounding() -> None:
    errors = paired(np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]), PAIR)
    assert errors.variance[0] == 0
