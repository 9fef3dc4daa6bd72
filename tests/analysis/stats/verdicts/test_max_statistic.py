"""The distributions agree with SciPy's, where it has them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from analysis.stats.verdicts.max_statistic import against_baseline, all_pairs, one_comparison


@pytest.mark.parametrize(("models", "freedom"), [(3, 6.0), (7, 14.0), (36, 72.0), (12, 2.5)])
def test_all_pairs_agree_with_the_studentized_range(models: int, freedom: float) -> None:
    ours, root = all_pairs(models), 2**0.5
    for t in (2.0, 4.0, 8.0):
        theirs = stats.studentized_range.sf(t * root, models, freedom)
        assert float(ours.p_value(t, freedom)) == pytest.approx(theirs, rel=1e-3, abs=1e-9)
    theirs = stats.studentized_range.isf(0.05, models, freedom) / root
    assert float(ours.critical(freedom)) == pytest.approx(theirs, rel=1e-4)


def test_one_comparison_agrees_with_student() -> None:
    freedom = np.array([1.0, 2.5, 7.0, 1e9])
    assert one_comparison().critical(freedom) == pytest.approx(stats.t.isf(0.025, freedom), rel=1e-4)
    assert one_comparison().critical(freedom, 0.1) == pytest.approx(stats.t.isf(0.05, freedom), rel=1e-4)
    assert one_comparison().p_value(3.0, freedom) == pytest.approx(2 * stats.t.sf(3.0, freedom), rel=1e-4)


def test_a_baseline_agrees_with_dunnett_for_unequal_numbers_of_seeds() -> None:
    rng = np.random.default_rng(0)
    control, samples = rng.normal(0, 1, 5), [rng.normal(1, 1, n) for n in (3, 4, 5)]
    theirs = stats.dunnett(*samples, control=control, rng=np.random.default_rng(1))
    ours = against_baseline((3, 4, 5), 5).p_value(theirs.statistic, 13.0)
    assert ours == pytest.approx(theirs.pvalue, abs=2e-3)


def test_a_baseline_of_known_deviation_agrees_with_draws() -> None:
    noise = np.random.default_rng(0).normal(size=(200_000, 4))
    largest = np.abs(noise[:, 1:] - noise[:, :1]).max(axis=1) / 2**0.5
    assert float(against_baseline((3, 3, 3), 3).p_value(2.0, 1e6)) == pytest.approx(
        (largest > 2.0).mean(), abs=2e-3
    )


@pytest.mark.parametrize("factor", [1.0, 1.25])
def test_a_detectable_shift_is_found_four_times_in_five(factor: float) -> None:
    family, freedom = all_pairs(4), 8.0
    shift = float(family.detectable_shift(freedom, factor))
    found = stats.nct.sf(factor * float(family.critical(freedom)), freedom, shift)
    assert found == pytest.approx(0.8, abs=1e-3)
