"""Standard errors of pairs against their definitions."""

import numpy as np
import pytest

from analysis.stats.verdicts.pair_errors import blocked_errors, own_blocked


def test_the_pooled_variance_of_blocks_is_the_mean_of_those_of_the_pairs() -> None:
    score_KN = np.random.default_rng(0).normal(size=(3, 4))
    pair_P2 = np.array([[0, 1], [0, 2], [1, 2]])
    own_P, _ = own_blocked(score_KN, pair_P2)
    error_P, _ = blocked_errors(score_KN, pair_P2)
    assert error_P**2 == pytest.approx(np.maximum(own_P, own_P.mean()))
