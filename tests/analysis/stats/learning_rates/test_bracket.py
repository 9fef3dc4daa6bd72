"""The tuning rule on planted results: what is trained next, what is chosen, error rate and cost."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from archbench.analysis.stats.learning_rates.bracket import Tuning, quarter_decades, standard_error, tune

SEEDS = 2
NAN = (math.nan, math.nan)
Landscape = Callable[[float], float]
"""Loss as a function of the decimal logarithm of the learning rate; infinite where training diverges."""


def twice(**losses: float) -> dict[float, tuple[float, float]]:
    """Return results with a small difference between the two seeds, by rate (as in ``r0_003=2.5``)."""
    return {float(rate[1:].replace("_", ".")): (loss, loss + 0.01) for rate, loss in losses.items()}


def searched(
    landscape: Landscape, start: float, noise: float, rng: np.random.Generator
) -> tuple[Tuning, dict[float, tuple[float, ...]]]:
    """Run a search to its end, and return its last state and results."""
    losses: dict[float, tuple[float, ...]] = {}
    next_rates: tuple[float, ...] = (start,)
    while next_rates:
        for rate in next_rates:
            loss = landscape(math.log10(rate))
            losses[rate] = tuple(loss + noise * rng.normal(size=SEEDS)) if math.isfinite(loss) else NAN
        next_rates = (tuning := tune(losses, SEEDS)).next_rates
    return tuning, losses


def bowl(optimum: float, left: float = 0.3, right: float = 0.3, diverges: float = math.inf) -> Landscape:
    """Return a quadratic loss; from ``diverges`` decades above the optimum on, training diverges."""

    def loss(x: float) -> float:
        if x - optimum >= diverges:
            return math.inf
        return 2.0 + (right if x > optimum else left) * (x - optimum) ** 2

    return loss


def test_a_search_goes_from_the_default_outwards_to_the_quarter_decades() -> None:
    results = twice(r0_003=2.5)
    assert tune(results, SEEDS).next_rates == (0.001, 0.01)
    results |= twice(r0_001=2.7, r0_01=2.4)
    state = tune(results, SEEDS)
    assert (state.next_rates, state.best, state.unbracketed) == ((0.03,), 0.01, "upper")
    results |= twice(r0_03=2.6)
    state = tune(results, SEEDS)
    assert (state.next_rates, state.unbracketed) == ((0.0056, 0.018), "")
    results |= twice(r0_0056=2.42, r0_018=2.35)
    state = tune(results, SEEDS)
    assert (state.next_rates, state.best, state.second, state.trials) == ((), 0.018, 0.01, 6)
    assert (state.loss, state.second_loss) == pytest.approx((2.355, 2.405))
    assert state.sensitivity == pytest.approx(0.25)  # at 0.03; 0.05 at 0.01


def test_a_neighbour_within_one_standard_error_is_no_bracket() -> None:
    results = twice(r0_001=2.51, r0_003=2.5, r0_01=2.7)
    error = standard_error([np.array(losses) for losses in results.values()])
    assert error == pytest.approx(0.01 / math.sqrt(2) / math.sqrt(0.4549), rel=1e-3)
    assert tune(results, SEEDS).next_rates == (0.0003,)
    assert tune(twice(r0_001=2.52, r0_003=2.5, r0_01=2.7), SEEDS).next_rates == (0.0018, 0.0056)


def test_a_rate_further_away_may_be_the_bracket() -> None:
    results = twice(r0_0003=2.8, r0_001=2.505, r0_003=2.5, r0_01=2.7)
    assert tune(results, SEEDS).next_rates == (0.0018, 0.0056)


def test_divergence_brackets_and_is_not_chosen() -> None:
    results = twice(r0_001=2.7, r0_003=2.5) | {0.01: (2.0, math.nan)}
    state = tune(results, SEEDS)
    assert (state.best, state.next_rates) == (0.003, (0.0018, 0.0056))
    results |= twice(r0_0018=2.6, r0_0056=2.45)
    state = tune(results, SEEDS)
    assert (state.best, state.sensitivity, state.trials) == (0.0056, math.inf, 5)


def test_where_all_diverged_lower_rates_are_tried() -> None:
    state = tune({0.003: NAN, 0.001: NAN}, SEEDS)
    assert (state.next_rates, state.unbracketed) == ((0.0003,), "lower")
    assert math.isnan(state.best)
    assert math.isnan(state.sensitivity)


def test_missing_seeds_are_trained_first() -> None:
    results = twice(r0_003=2.5, r0_01=2.6) | {0.001: (2.4,)}
    state = tune(results, SEEDS)
    assert (state.next_rates, state.best) == ((0.001,), 0.003)


def test_a_search_without_end_stops_at_the_limits_and_says_so() -> None:
    rng = np.random.default_rng(0)
    state, losses = searched(lambda x: 2.0 - x, 0.003, 0.001, rng)
    assert (state.best, state.unbracketed, max(losses)) == (1.0, "upper", 1.0)
    state, losses = searched(lambda x: math.inf, 0.003, 0.0, rng)
    assert (state.unbracketed, min(losses)) == ("lower", 1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_a_search_can_be_resumed_anywhere(seed: int) -> None:
    rng = np.random.default_rng(seed)
    losses = searched(bowl(rng.uniform(-4, -1)), 0.003, 0.01, rng)[1]
    order, replayed = [0.003], {}
    while order:
        rate = order.pop()
        replayed[rate] = losses[rate]
        shuffled = dict(sorted(replayed.items(), key=lambda _: rng.random()))
        assert repr(tune(shuffled, SEEDS)) == repr(tune(replayed, SEEDS))  # NaN does not equal NaN
        order = order or list(tune(replayed, SEEDS).next_rates)
    assert replayed == losses


@pytest.mark.parametrize(
    ("curves", "noise", "most_trials"),
    [
        ({}, 0.005, 9),
        ({"left": 0.15}, 0.003, 9),
        ({"diverges": 0.6}, 0.005, 9),
        ({"diverges": 0.3}, 0.005, 9),
        ({"left": 1.0, "right": 1.0}, 0.02, 9),
    ],
    ids=["quadratic", "flat to the left", "diverges", "diverges early", "steep and noisy"],
)
def test_the_optimum_is_found_within_a_quarter_decade(
    curves: dict[str, float], noise: float, most_trials: float
) -> None:
    rng = np.random.default_rng(0)
    misses, trials = [], []
    for _ in range(200):
        optimum = math.log10(0.003) + rng.uniform(-1.5, 1.5)
        state, _ = searched(bowl(optimum, **curves), 0.003, noise, rng)
        misses.append(abs(math.log10(state.best) - optimum))
        trials.append(state.trials)
    assert np.mean(np.array(misses) <= 0.25 + 0.03) >= 0.95  # rates have one or two digits
    assert np.mean(trials) <= most_trials


def test_steps_are_quarters_of_a_decade() -> None:
    rates = (1e-6, 0.0003, 0.001, 0.0018, 0.0032, 0.0056, 0.01, 1.0)
    assert [quarter_decades(rate) for rate in rates] == [-24, -14, -12, -11, -10, -9, -8, 0]
