"""Verdicts of the protocol: agreement with SciPy, corrections, intervals, equivalence, error rates."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from analysis.stats.verdicts.exact_tests import boschloo_table
from analysis.stats.verdicts.simulated_procedures import Studies, solve_counts, standard
from analysis.stats.verdicts.simulation import SCENARIOS, family_wise_error, power
from analysis.stats.verdicts.standard import correct, holm, interval_level
from analysis.stats.verdicts.verdict import Verdict, make_family, verdicts

Scores = dict[str, dict[int, float]]


def study(*models: list[float]) -> Scores:
    """Return models ``a``, ``b`` and so on, with seeds from 0."""
    return {chr(97 + number): dict(enumerate(scores)) for number, scores in enumerate(models)}


def judged(scores: Scores, **settings: object) -> dict[str, Verdict]:
    """Return the verdicts of the protocol by the names of both models."""
    found = verdicts(scores, "higher", protocol="1.0", **settings)  # type: ignore[arg-type]
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
    assert (verdict.verdict, verdict.test) == ("better", "paired t, Benjamini-Hochberg")
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
    assert holm([0.01, 0.04, 0.03, 0.2]) == pytest.approx([0.04, 0.09, 0.09, 0.2])
    assert correct(np.array([0.03, math.nan, 0.01]), all_pairs=False)[[0, 2]].tolist() == [0.03, 0.02]


@pytest.mark.parametrize("all_pairs", [True, False])
def test_intervals_contain_zero_if_and_only_if_a_pair_is_not_rejected(all_pairs: bool) -> None:
    rng = np.random.default_rng(0)
    rejections = 0
    for _ in range(200):
        models = rng.normal(size=(6, 5)) + rng.choice([0, 2, 4], size=(6, 1))
        named = [dict(enumerate(scores)) for scores in models.tolist()]
        family = make_family(named, None if all_pairs else 0, shared=False, protocol="1.0")
        rejected_P = family.p_values() < 0.05
        assert ((np.abs(family.difference) > family.half_widths()) == rejected_P).all()
        rejections += int(rejected_P.sum())
    assert rejections > 200
    assert interval_level(np.array([0.01, 0.2, math.nan]), all_pairs=True) == pytest.approx(0.025)


def test_the_detectable_difference_is_found_in_80_percent_of_studies() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(2000, 2, 8))
    families = [
        make_family([dict(enumerate(a)), dict(enumerate(b))], 0, shared=False, protocol="1.0")
        for a, b in scores[:50]
    ]
    shift = float(np.median([family.detectable()[0] for family in families]))
    scores[:, 1] += shift
    found = stats.ttest_ind(scores[:, 0], scores[:, 1], axis=1, equal_var=False).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.06)
    [needed] = families[0].seeds_to_decide()
    assert needed is None or needed > 8 or families[0].detectable()[0] <= abs(families[0].difference[0])


@pytest.mark.parametrize("seeds", [3, 5])
def test_the_table_of_boschloos_test_is_that_of_scipy(seeds: int) -> None:
    for a in range(seeds + 1):
        for b in range(a, seeds + 1):
            oracle = stats.boschloo_exact([[a, b], [seeds - a, seeds - b]], n=32).pvalue
            expected = 1.0 if math.isnan(oracle) else oracle
            assert boschloo_table(seeds, seeds)[a, b] == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("seeds", [4, 5])
def test_the_simulated_procedure_is_the_verdict(seeds: int) -> None:
    scores = np.random.default_rng(0).normal(size=(6, 5, seeds))
    scores[:, 0] += 4
    for baseline in (None, "0"):
        studies = Studies(scores, against_baseline=baseline is not None)
        for single, rejected in zip(scores, standard(studies), strict=True):
            named = {str(i): dict(enumerate(own)) for i, own in enumerate(single.tolist())}
            found = verdicts(named, "higher", baseline=baseline, protocol="1.0")
            decided = {frozenset((v.model, v.other)) for v in found if v.verdict != "undecided"}
            assert decided == {frozenset(map(str, pair)) for pair in studies.pair_P2[rejected].tolist()}


CASES = [(name, seeds) for name in SCENARIOS for seeds in (3, 5)]


def limit(replicates: int) -> float:
    """Return 6%, plus three standard errors of the simulation."""
    return 0.06 + 3 * (0.06 * 0.94 / replicates) ** 0.5


@pytest.mark.parametrize(("name", "seeds"), CASES)
def test_at_most_6_percent_of_studies_of_equal_models_find_a_difference(name: str, seeds: int) -> None:
    procedure: Callable[..., np.ndarray] = solve_counts if name == "solved or not" else standard
    assert family_wise_error(procedure, SCENARIOS[name], seeds, 2000) < limit(2000)


def test_few_of_the_pairs_called_different_are_equal() -> None:
    """The false discovery rate of all pairs, where half of the models are better."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(1000, 8, 5))
    scores[:, 4:] += 3
    studies = Studies(scores, against_baseline=False)
    rejected, (a_P, b_P) = standard(studies), studies.pair_P2.T
    wrong = (rejected & ((a_P < 4) == (b_P < 4))).sum(axis=1) / np.maximum(rejected.sum(axis=1), 1)
    assert wrong.mean() < 0.05


def test_five_seeds_find_five_standard_deviations() -> None:
    assert power(standard, 5, 5, 500, against_baseline=True) > 0.97
    assert power(standard, 5, 5, 500, against_baseline=False) > 0.97
    assert power(standard, 3, 5, 500, against_baseline=True) > 0.7
