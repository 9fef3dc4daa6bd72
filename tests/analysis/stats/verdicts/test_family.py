"""Detectable differences, seeds to decide and equivalence, by hand and in simulated studies."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from analysis.stats.verdicts.family import MOST_SEEDS, Family
from analysis.stats.verdicts.verdict import make_family, verdicts


def family(means: list[float], seeds: int, deviation: float = 1.0, baseline: int | None = None) -> Family:
    """Models whose estimated deviations are all as given."""
    noise = np.linspace(-1, 1, seeds)
    noise *= deviation / noise.std(ddof=1)
    made = make_family([dict(enumerate(mean + noise)) for mean in means], baseline, shared=False)
    assert isinstance(made, Family)
    return made


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
    models_family = family([0.0] * models, seeds, baseline=None if baseline is None else 0)
    shift = float(models_family.detectable()[0])
    # The larger of two errors is taken, so that the power is somewhat below with few seeds.
    assert 0.68 < power(models, seeds, shift, baseline) < 0.84


def test_more_seeds_and_fewer_models_show_smaller_differences() -> None:
    few, more = (float(family([0.0] * 5, n).detectable()[0]) for n in (3, 10))
    two = float(family([0.0] * 2, 10).detectable()[0])
    against = float(family([0.0] * 5, 10, baseline=0).detectable()[0])
    assert two < against < more < few


def test_seeds_to_decide_would_find_the_difference() -> None:
    models_family = family([0.0, 1.0, 1.0], 4)
    [seeds, _, same] = models_family.seeds_to_decide()
    assert seeds is not None
    assert same is None  # no difference, no margin: nothing would be decided
    assert float(family([0.0, 1.0, 1.0], seeds).detectable()[0]) <= 1.0
    assert float(family([0.0, 1.0, 1.0], seeds - 1).detectable()[0]) > 1.0


def test_what_needs_more_than_a_hundred_seeds_is_out_of_reach() -> None:
    assert family([0.0, 0.1], 5).seeds_to_decide() == [None]
    assert MOST_SEEDS == 100


def test_with_a_margin_seeds_decide_that_models_are_equivalent() -> None:
    near = [family([0.0, 0.0], 5).seeds_to_decide(margin)[0] for margin in (0.5, 1.0, 2.0)]
    assert near == [70, 18, 5]


def test_a_difference_below_the_margin_is_not_called_detectable() -> None:
    assert float(family([0.0, 0.0], 5, 0.001).detectable(0.5)[0]) == 0.5


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
    assert not family([0.0, 0.0, 0.0], 9, 1e-9).equivalent(0.0).any()
    without_spread = make_family([dict.fromkeys(range(5), 1.0)] * 2, None, shared=False)
    assert not without_spread.equivalent(1.0).any(), "not tested"


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
