"""Boschloo's exact test against SciPy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from archbench.analysis.stats.verdicts.exact_tests import boschloo, boschloo_table


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


@pytest.mark.parametrize("seeds", [3, 5])
def test_the_table_is_that_of_scipy(seeds: int) -> None:
    for a in range(seeds + 1):
        for b in range(a, seeds + 1):
            oracle = stats.boschloo_exact([[a, b], [seeds - a, seeds - b]], n=32).pvalue
            expected = 1.0 if math.isnan(oracle) else oracle
            assert boschloo_table(seeds, seeds)[a, b] == pytest.approx(expected, abs=2e-3)
