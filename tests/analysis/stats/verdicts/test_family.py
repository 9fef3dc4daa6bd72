"""Families of tests: agreement with SciPy, corrections, intervals, equivalence, detectable differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from archbench.analysis.stats.verdicts.family import MOST_SEEDS, Family, correct, holm, interval_level
from archbench.analysis.stats.verdicts.verdict import Verdict, make_family, verdicts

Scores = dict[str, dict[int, float]]


def study(*models: list[float]) -> Scores:
    """Return models ``a``, ``b`` and so on, with seeds from 0."""
    return {chr(97 + number): dict(enumerate(scores)) for number, scores in enumerate(models)}


def judged(scores: Scores, **settings: object) -> dict[str, Verdict]:
    """Return the verdicts by the names of both models."""
    found = verdicts(scores, "higher", **settings)  # type: ignore[arg-type]
    return {verdict.model + verdict.other: verdict for verdict in found}


MODELS = ([0.1, 0.3, 0.2], [1.0, 1.3, 1.1], [0.4, 0.2, 0.9, 0.3])


def test_against_a_baseline_each_model_has_welchs_p_with_holms_correction() -> None:
    found = judged(study(*MODELS), baseline="a")
    welch = {
        name: stats.ttest_ind(scores, MODELS[0], equal_var=False)
        for name, scores in (("ba", MODELS[1]), ("ca", MODELS[2]))
    }
    assert found["ba"].p == pytest.approx(2 * welch["ba"].pvalue)  # the smaller of two
    assert found["ca"].p == pytest.approx(welch["ca"].pvalue)
    assert [found[name].verdict for name in welch] == ["better", "undecided"]
    assert {verdict.test for verdict in found.values()} == {"Welch, Holm"}
    # One pair is not rejected: the intervals have its level, 5%.
    for name, test in welch.items():
        assert [found[name].low, found[name].high] == pytest.approx([*test.confidence_interval(0.95)])


def test_all_pairs_have_benjamini_and_hochbergs_correction() -> None:
    found = judged(study(*MODELS))
    pairs = {"ba": (1, 0), "ca": (2, 0), "bc": (1, 2)}
    p = [stats.ttest_ind(MODELS[i], MODELS[j], equal_var=False).pvalue for i, j in pairs.values()]
    expected = stats.false_discovery_control(p, method="bh")
    assert [found[name].p for name in pairs] == pytest.approx(expected.tolist())
    assert {verdict.test for verdict in found.values()} == {"Welch, Benjamini-Hochberg"}


def test_shared_seeds_are_compared_within_seeds() -> None:
    a, b = [1.0, 2.0, 3.0, 4.0], [1.1, 2.2, 3.1, 4.2]
    [verdict] = judged(study(a, b), shared_seeds=True).values()
    oracle = stats.ttest_rel(b, a)
    assert (verdict.verdict, verdict.test) == ("better", "paired t")
    assert verdict.p == pytest.approx(oracle.pvalue)
    assert [verdict.low, verdict.high] == pytest.approx([*oracle.confidence_interval(0.95)])


def test_two_one_sided_tests_decide_equivalence() -> None:
    a, b = [0.50, 0.51, 0.49, 0.50, 0.505], [0.502, 0.498, 0.512, 0.495, 0.503]
    [verdict] = judged(study(a, b), margin=0.02).values()
    shifted = [stats.ttest_ind(np.add(b, 0.02), a, equal_var=False, alternative="greater").pvalue]
    shifted += [stats.ttest_ind(np.subtract(b, 0.02), a, equal_var=False, alternative="less").pvalue]
    assert max(shifted) < 0.05
    assert verdict.verdict == "equivalent"
    boundary = 0.01
    shifted = [stats.ttest_ind(np.add(b, boundary), a, equal_var=False, alternative="greater").pvalue]
    shifted += [stats.ttest_ind(np.subtract(b, boundary), a, equal_var=False, alternative="less").pvalue]
    [verdict] = judged(study(a, b), margin=boundary).values()
    assert (verdict.verdict == "equivalent") == (max(shifted) < 0.05)
    assert judged(study(a, b))["ba"].verdict == "undecided"  # no margin, no equivalence


def test_models_without_spread_are_not_tested_and_not_counted() -> None:
    found = judged(study([1.0] * 3, [1.0] * 3, *MODELS[:2]), baseline="a")
    assert (found["ba"].reason, found["ba"].verdict) == ("no spread", "undecided")
    assert found["ca"].p == pytest.approx(2 * stats.ttest_1samp(MODELS[0], 1.0).pvalue)


def test_holm_by_hand() -> None:
    # Sorted: .01 * 4, .02 * 3, .03 * 2 (held at .06), .9 * 1.
    assert holm([0.03, 0.01, 0.9, 0.02]) == pytest.approx([0.06, 0.04, 0.9, 0.06])
    assert holm([0.5, 0.6]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []
    assert holm([0.01, 0.04, 0.03, 0.2]) == pytest.approx([0.04, 0.09, 0.09, 0.2])
    assert correct(np.array([0.03, math.nan, 0.01]), all_pairs=False)[[0, 2]].tolist() == [0.03, 0.02]


@pytest.mark.parametrize("all_pairs", [True, False])
def test_intervals_contain_zero_if_and_only_if_a_pair_is_not_rejected(all_pairs: bool) -> None:
    rng = np.random.default_rng(0)
    rejections = 0
    for _ in range(200):
        models = rng.normal(size=(6, 5)) + rng.choice([0, 2, 4], size=(6, 1))
        named = [dict(enumerate(scores)) for scores in models.tolist()]
        family = make_family(named, None if all_pairs else 0, shared=False)
        rejected_P = family.p_values() < 0.05
        assert ((np.abs(family.difference) > family.half_widths()) == rejected_P).all()
        rejections += int(rejected_P.sum())
    assert rejections > 200
    assert interval_level(np.array([0.01, 0.2, math.nan]), all_pairs=True) == pytest.approx(0.025)


def test_the_detectable_difference_is_found_in_80_percent_of_studies() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(2000, 2, 8))
    families = [
        make_family([dict(enumerate(a)), dict(enumerate(b))], 0, shared=False) for a, b in scores[:50]
    ]
    shift = float(np.median([family.detectable()[0] for family in families]))
    scores[:, 1] += shift
    found = stats.ttest_ind(scores[:, 0], scores[:, 1], axis=1, equal_var=False).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.06)
    [needed] = families[0].seeds_to_decide()
    assert needed is None or needed > 8 or families[0].detectable()[0] <= abs(families[0].difference[0])


def family(means: list[float], seeds: int, deviation: float = 1.0, baseline: int | None = None) -> Family:
    """Return models whose estimated deviations are all as given."""
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
    models_family = family([0.0] * models, seeds, baseline=None if baseline is None else 0)
    shift = float(models_family.detectable()[0])
    # Bonferroni's correction is assumed, and those of the tests reject more where several pairs differ.
    assert 0.72 < power(models, seeds, shift, baseline) < (0.95 if models > 2 and baseline is None else 0.88)


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
    assert float(family([0.0, 0.0], 5, 0.001).detectable(0.5)[0]) == pytest.approx(0.5, abs=0.001)


def test_a_difference_just_above_the_margin_is_often_measured_below_it() -> None:
    """The observed difference must be above the margin, too."""
    families = family([0.0, 0.0], 5, 0.1)
    shift = float(families.detectable(1.0)[0])
    rng = np.random.default_rng(0)
    observed = shift + rng.normal(size=4000) * 0.1 * (2 / 5) ** 0.5
    assert (observed > 1.0).mean() == pytest.approx(0.8, abs=0.02)


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
@pytest.mark.parametrize("baseline", [None, "6"])
def test_few_of_the_pairs_called_equivalent_are_not(baseline: str | None) -> None:
    """Seven models: six alike, one exactly a margin away from them."""
    rng, any_wrong, rate = np.random.default_rng(0), [], []
    for _ in range(400):
        draws = rng.normal(0, 1, (7, 20))
        draws[-1] += 1.2
        scores = {str(i): dict(enumerate(row)) for i, row in enumerate(draws.tolist())}
        found = verdicts(scores, "higher", margin=1.2, baseline=baseline)
        equivalent = [v for v in found if v.verdict == "equivalent"]
        wrong = ["6" in (v.model, v.other) for v in equivalent]
        any_wrong.append(any(wrong))
        rate.append(np.mean(wrong) if wrong else 0.0)
    assert np.mean(rate) < 0.05 if baseline is None else np.mean(any_wrong) < 0.08
