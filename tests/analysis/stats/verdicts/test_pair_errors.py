"""Standard errors of pairs against their definitions."""

import numpy as np
import pytest

from analysis.stats.verdicts.family import pairs_of
from analysis.stats.verdicts.pair_errors import blocked, larger, paired, pooled, welch


def test_the_pooled_variance_of_blocks_is_the_mean_of_those_of_the_pairs() -> None:
    score_KN = np.random.default_rng(0).normal(size=(3, 4))
    pair_P2 = np.array([[0, 1], [0, 2], [1, 2]])
    pairwise, pool = paired(score_KN, pair_P2), blocked(score_KN, pair_P2)
    assert pool.variance == pytest.approx(pairwise.variance.mean())
    larger_P = larger(pairwise, pool).variance
    assert larger_P == pytest.approx(np.maximum(pairwise.variance, pairwise.variance.mean()))


def test_the_pairwise_error_takes_over_where_a_model_is_noisier() -> None:
    variances, sizes, pairs = np.array([1.0, 1.0, 1.0, 400.0]), np.full(4, 5.0), pairs_of(4, None)
    errors = larger(welch(variances, sizes, pairs), pooled(variances, sizes, pairs))
    assert errors.error[2] == pytest.approx((401 / 5) ** 0.5)  # the first and the last
    assert errors.freedom[2] == pytest.approx(4.04, abs=0.01)  # nearly the four of the noisy one alone
    assert errors.error[0] == pytest.approx((2 * 403 / 4 / 5) ** 0.5)
    assert errors.freedom[0] == 16
