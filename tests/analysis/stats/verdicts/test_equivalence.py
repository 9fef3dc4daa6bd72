from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from analysis.stats.verdicts.equivalence import is_equivalent
from analysis.stats.verdicts.verdict_test import verdicts


def test_two_one_sided_tests_by_hand() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 0.1, 12), rng.normal(0.01, 0.1, 12)
    scores = {"a": dict(enumerate(a)), "b": dict(enumerate(b))}
    for margin in np.linspace(0.01, 0.3, 30):
        greater = stats.ttest_ind(a + margin, b, equal_var=False, alternative="greater").pvalue
        less = stats.ttest_ind(a - margin, b, equal_var=False, alternative="less").pvalue
        [verdict] = verdicts(scores, "higher", margin=float(margin))
        assert (verdict.verdict == "equivalent") == (max(greater, less) < 0.05)


def test_without_a_margin_nothing_is_equivalent() -> None:
    assert not is_equivalent(np.zeros(2), np.zeros(2), 0.0).any()
    assert not is_equivalent(np.zeros(1), np.array([np.nan]), 1.0).any()


def test_a_sure_difference_that_may_be_within_the_margin_is_undecided() -> None:
    a, b = {0: 1.0, 1: 1.1, 2: 1.2}, {0: 2.0, 1: 2.1, 2: 2.2}
    [verdict] = verdicts({"a": a, "b": b}, "higher", margin=1.05)
    assert (verdict.verdict, verdict.reason) == ("undecided", "below the margin")


@pytest.mark.full
def test_equivalence_errs_in_5_of_100_families() -> None:
    """Seven models: six alike, one exactly a margin away from them."""
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(400):
        draws = rng.normal(0, 1, (7, 20))
        draws[-1] += 1.2
        scores = {str(i): dict(enumerate(row)) for i, row in enumerate(draws.tolist())}
        found = verdicts(scores, "higher", margin=1.2)
        wrong += any(v.verdict == "equivalent" and "6" in (v.model, v.other) for v in found)
    assert wrong / 400 < 0.08
