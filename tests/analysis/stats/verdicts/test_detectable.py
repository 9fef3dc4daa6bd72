"""Differences that are said to be found, and seeds that are said to decide, hold in simulated studies."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.stats.verdicts.detectable import MOST_SEEDS, detectable_differences, seeds_to_decide
from analysis.stats.verdicts.family import Family, make_family
from analysis.stats.verdicts.verdict_test import verdicts


def family(means: list[float], seeds: int, deviation: float = 1.0, baseline: int | None = None) -> Family:
    """Models whose estimated deviations are all as given."""
    noise = np.linspace(-1, 1, seeds)
    noise *= deviation / noise.std(ddof=1)
    return make_family([dict(enumerate(mean + noise)) for mean in means], baseline, shared=False)


def power(models: int, seeds: int, shift: float, baseline: str | None, studies: int = 1500) -> float:
    """Return the fraction of studies in which a model that is better by ``shift`` deviations is found."""
    rng, found = np.random.default_rng(0), 0
    for _ in range(studies):
        draws = rng.normal(size=(models, seeds))
        draws[1] += shift
        scores = {str(i): dict(enumerate(row)) for i, row in enumerate(draws.tolist())}
        found += next(
            v.verdict == ("better" if v.model == "1" else "worse")
            for v in verdicts(scores, "higher", baseline=baseline)
            if {v.model, v.other} == {"0", "1"}
        )
    return found / studies


@pytest.mark.full
@pytest.mark.parametrize(("models", "seeds", "baseline"), [(2, 5, None), (5, 5, None), (7, 10, "0")])
def test_a_detectable_difference_is_found_four_times_in_five(
    models: int, seeds: int, baseline: str | None
) -> None:
    known = family([0.0] * models, seeds, baseline=None if baseline is None else 0)
    shift = float(detectable_differences(known)[0])
    # The larger of two errors is taken, so that the power is somewhat below with few seeds.
    assert 0.68 < power(models, seeds, shift, baseline) < 0.84


def test_more_seeds_and_fewer_models_show_smaller_differences() -> None:
    few, more = (float(detectable_differences(family([0.0] * 5, n))[0]) for n in (3, 10))
    two = float(detectable_differences(family([0.0] * 2, 10))[0])
    against = float(detectable_differences(family([0.0] * 5, 10, baseline=0))[0])
    assert two < against < more < few


def test_seeds_to_decide_would_find_the_difference() -> None:
    known = family([0.0, 1.0, 1.0], 4)
    [seeds, _, same] = seeds_to_decide(known)
    assert seeds is not None
    assert same is None  # no difference, no margin: nothing would be decided
    assert float(detectable_differences(family([0.0, 1.0, 1.0], seeds))[0]) <= 1.0
    assert float(detectable_differences(family([0.0, 1.0, 1.0], seeds - 1))[0]) > 1.0


def test_what_needs_more_than_a_hundred_seeds_is_out_of_reach() -> None:
    assert seeds_to_decide(family([0.0, 0.1], 5)) == [None]
    assert MOST_SEEDS == 100


def test_with_a_margin_seeds_decide_that_models_are_equivalent() -> None:
    near = [seeds_to_decide(family([0.0, 0.0], 5), margin)[0] for margin in (0.5, 1.0, 2.0)]
    assert near == [70, 18, 5]


def test_a_difference_below_the_margin_is_not_called_detectable() -> None:
    assert float(detectable_differences(family([0.0, 0.0], 5, 0.001), 0.5)[0]) == 0.5
