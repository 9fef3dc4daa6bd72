"""Compute multipliers of planted curves, and how often their intervals and verdicts are right."""

from __future__ import annotations

import math

import numpy as np
import pytest

from archbench.analysis.stats.compute.multiplier import ComputeComparison, Curve, Multiplier, compare_compute

BUDGETS = (1e11, 1e12, 1e13)


def loss(flops: float) -> float:
    """The planted loss of the baseline: a power law with an irreducible part."""
    return 1.5 + 2.0 * (flops / 1e11) ** -0.25


def planted(
    multiplier: float,
    seeds: int | tuple[int, ...] = 5,
    noise: float | tuple[float, ...] = 0.0,
    generator: np.random.Generator | None = None,
    budgets: tuple[float, ...] = BUDGETS,
    slope: float = 0.0,
) -> Curve:
    """A model that needs ``multiplier`` times less compute than the baseline, at the middle budget."""
    generator = generator or np.random.default_rng(0)
    seeds = seeds if isinstance(seeds, tuple) else (seeds,) * len(budgets)
    noise = noise if isinstance(noise, tuple) else (noise,) * len(budgets)
    scores = []
    for flops, count, deviation in zip(budgets, seeds, noise, strict=True):
        gained = multiplier * (flops / 1e12) ** slope
        scores.append(list(loss(flops * gained) + deviation * generator.standard_normal(count)))
    return Curve(flops=budgets, scores=scores)


def test_a_model_equal_to_the_baseline_has_multiplier_one() -> None:
    comparison = compare_compute(planted(1.0), planted(1.0))
    for multiplier in comparison.multipliers:
        assert multiplier.value == pytest.approx(1, rel=1e-6)


def test_a_planted_multiplier_is_found_between_the_budgets() -> None:
    comparison = compare_compute(planted(2.0), planted(1.0))
    assert [m.bound for m in comparison.multipliers] == ["", "", "at least"]
    for multiplier in comparison.multipliers[:2]:
        assert multiplier.value == pytest.approx(2, rel=0.1)  # of interpolating a decade
    assert comparison.multipliers[2].value == pytest.approx(1)


def test_interpolation_is_exact_where_the_curve_is_a_line() -> None:
    """Scores 3, 2, 1 at 1, 10, 100 FLOPs: score 2.5 is reached at the square root of 10."""
    baseline = Curve(flops=(1, 10, 100), scores=[[3.0], [2.0], [1.0]])
    (multiplier,) = compare_compute(Curve(flops=(2,), scores=[[2.5]]), baseline).multipliers
    assert multiplier.value == pytest.approx(10**0.5 / 2, rel=1e-6)


def test_a_score_that_the_smallest_budget_has_already_is_a_bound_too() -> None:
    model = Curve(flops=(1e12,), scores=[[4.0] * 3])
    (multiplier,) = compare_compute(model, planted(1.0)).multipliers
    assert (multiplier.bound, multiplier.low) == ("at most", 0)
    assert multiplier.value == multiplier.high == pytest.approx(0.1)


def test_a_baseline_that_gets_worse_counts_with_its_best_score() -> None:
    baseline = Curve(flops=(1, 10, 100), scores=[[3.0], [1.0], [2.0]])
    (multiplier,) = compare_compute(Curve(flops=(100,), scores=[[1.0]]), baseline).multipliers
    assert multiplier.value == pytest.approx(0.1)


def test_the_slope_is_the_planted_one() -> None:
    comparison = compare_compute(planted(0.5, slope=-0.2, noise=0.001), planted(1.0, noise=0.001))
    assert comparison.slope == pytest.approx(-0.2, abs=0.1)
    assert comparison.slope_low < comparison.slope < comparison.slope_high


def test_without_repeated_seeds_nothing_is_decided() -> None:
    comparison = compare_compute(planted(3.0, seeds=1), planted(1.0, seeds=1))
    assert comparison.verdict == "undecided"
    assert math.isinf(comparison.multipliers[0].high)


def test_a_single_seed_has_the_noise_of_the_other_budgets() -> None:
    generator = np.random.default_rng(0)
    counts = (5, 1, 5)
    comparison = compare_compute(planted(2.0, counts, 0.05, generator), planted(1.0, counts, 0.05, generator))
    assert comparison.multipliers[1].low < 2 < comparison.multipliers[1].high
    assert math.isfinite(comparison.multipliers[1].low)


def test_a_model_below_every_score_of_the_baseline_is_ahead() -> None:
    """The baseline does not reach its scores at the two largest budgets, which differ by 1%."""
    scores = [[1.4, 1.41, 1.42], [1.3, 1.31, 1.32], [1.2, 1.21, 1.22]]
    model = Curve(flops=(1e11, 1.01e12, 1.01e13), scores=scores)
    comparison = compare_compute(model, planted(1.0, noise=0.01))
    assert [m.bound for m in comparison.multipliers] == ["at least"] * 3
    assert [m.value for m in comparison.multipliers] == pytest.approx([100, 10 / 1.01, 1 / 1.01])
    assert comparison.verdict == "ahead"


def test_a_multiplier_divides_by_the_models_own_flops() -> None:
    """Scores 3, 2, 1 at 1, 10, 100 FLOPs: the score at 10.1 FLOPs is that of the baseline at 10."""
    baseline = Curve(flops=(1, 10, 100), scores=[[3.0], [2.0], [1.0]])
    (multiplier,) = compare_compute(Curve(flops=(10.1,), scores=[[2.0]]), baseline).multipliers
    assert multiplier.value == pytest.approx(1 / 1.01, rel=1e-6)


def test_two_seeds_of_the_bootstrap_agree_to_two_digits() -> None:
    """Three seeds and nine models, as in text over compute: an end is far in the tail."""
    generator = np.random.default_rng(0)
    noise = (0.03, 0.06, 0.012)
    model, baseline = (planted(factor, 3, noise, generator) for factor in (2.0, 1.0))
    first, second = (
        compare_compute(model, baseline, confidence=1 - 0.05 / 9, seed=seed).multipliers[:2]
        for seed in (0, 1)
    )
    for one, other in zip(first, second, strict=True):
        assert one.low == pytest.approx(other.low, rel=0.02)
        assert one.high == pytest.approx(other.high, rel=0.02)


@pytest.mark.parametrize(
    ("intervals", "slope_high", "verdict"),
    [
        ([(0.5, 3), (1.2, 3), (1.1, 2)], 0.1, "ahead"),
        ([(2, 5), (1.2, 3), (1.1, 2)], -0.1, "ahead but shrinking"),
        ([(0.5, 3), (0.5, 0.9), (0.3, 0.8)], 0.1, "behind"),
        ([(2, 5), (0.9, 1.3), (0.3, 0.8)], -0.1, "crosses"),
        ([(2, 5), (0.9, 1.3), (1.1, 1.8)], -0.1, "undecided"),
        ([(1.2, 3)], math.nan, "undecided"),
    ],
)
def test_the_verdict_follows_the_rule(
    intervals: list[tuple[float, float]], slope_high: float, verdict: str
) -> None:
    multipliers = tuple(
        Multiplier(flops=10.0**i, budget=10.0**i, value=(low * high) ** 0.5, bound="", low=low, high=high)
        for i, (low, high) in enumerate(intervals)
    )
    comparison = ComputeComparison(multipliers=multipliers, slope=0, slope_low=-1, slope_high=slope_high)
    assert comparison.verdict == verdict


def test_a_crossing_is_interpolated() -> None:
    multipliers = tuple(
        Multiplier(flops=flops, budget=flops, value=value, bound="", low=value, high=value)
        for flops, value in ((1e10, 4.0), (1e12, 0.25))
    )
    comparison = ComputeComparison(multipliers=multipliers, slope=0, slope_low=0, slope_high=0)
    assert comparison.crossing == pytest.approx(1e11)
    assert comparison.verdict == "crosses"


@pytest.mark.parametrize("noise", [(0.03, 0.03, 0.03), (0.08, 0.03, 0.01)], ids=["equal", "unequal"])
@pytest.mark.parametrize("seeds", [3, 5])
def test_intervals_cover_the_planted_multiplier(seeds: int, noise: tuple[float, ...]) -> None:
    """Budgets a factor of 3 apart, where interpolation adds no error that matters."""
    generator = np.random.default_rng(seeds)
    budgets, covered, studies = (1e11, 3.16e11, 1e12), np.zeros(2), 400
    for study in range(studies):
        model = planted(1.5, seeds, noise, generator, budgets)
        baseline = planted(1.0, seeds, noise, generator, budgets)
        found = compare_compute(model, baseline, draws=500, seed=study).multipliers[:2]
        covered += [m.low <= 1.5 <= m.high for m in found]
    assert (covered / studies > 0.92).all()


@pytest.mark.parametrize("seeds", [3, 5])
def test_equal_models_are_seldom_separated(seeds: int) -> None:
    generator = np.random.default_rng(seeds)
    studies, wrong = 400, 0
    for study in range(studies):
        model, baseline = (planted(1.0, seeds, 0.05, generator) for _ in range(2))
        wrong += compare_compute(model, baseline, draws=500, seed=study).verdict != "undecided"
    assert wrong / studies <= 0.06
