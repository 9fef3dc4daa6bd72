"""Verdicts of a family of models, by hand and against SciPy."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from archbench.analysis.stats.verdicts.verdict import Verdict, verdicts

Scores = dict[str, dict[int, float]]


def study(*arms: list[float]) -> Scores:
    """Models ``a``, ``b`` and so on, with seeds from 0."""
    return {chr(97 + number): dict(enumerate(arm)) for number, arm in enumerate(arms)}


def pair(found: list[Verdict], *names: str) -> Verdict:
    return next(verdict for verdict in found if {verdict.model, verdict.other} == set(names))


def test_two_models_agree_with_welch() -> None:
    a, b = [2.40, 2.50, 2.30, 2.45], [2.55, 2.75, 2.63]
    [verdict] = verdicts(study(a, b), "lower")
    oracle = stats.ttest_ind(b, a, equal_var=False)
    assert (verdict.model, verdict.other, verdict.seeds) == ("a", "b", 3)
    assert verdict.test == "Welch"
    assert verdict.difference == pytest.approx(np.mean(b) - np.mean(a))
    assert verdict.p == pytest.approx(oracle.pvalue, rel=1e-4)
    assert [verdict.low, verdict.high] == pytest.approx([*oracle.confidence_interval(0.95)], rel=1e-4)


def test_a_noisy_model_does_not_hide_the_others() -> None:
    quiet = [[0.0, 0.01, -0.01], [0.5, 0.51, 0.49], [0.01, -0.01, 0.0]]
    found = verdicts(study(*quiet, [0.5, 1.5, -0.2]), "higher")
    noisy, apart = pair(found, "a", "d"), pair(found, "a", "b")
    assert noisy.standard_error == pytest.approx(math.sqrt(np.var([0.5, 1.5, -0.2], ddof=1) / 3), rel=1e-3)
    assert (noisy.verdict, apart.verdict) == ("undecided", "better")
    assert apart.p == pytest.approx(stats.ttest_ind(quiet[1], quiet[0], equal_var=False).pvalue * 6 / 2)


def test_direction_decides_who_is_better() -> None:
    scores = study([0.5, 0.6, 0.55], [0.8, 0.91, 0.84])
    [higher], [lower] = (verdicts(scores, direction) for direction in ("higher", "lower"))
    assert (higher.model, higher.verdict, lower.model, lower.verdict) == ("b", "better", "a", "better")
    assert [v.verdict for v in verdicts(scores, "higher", baseline="b")] == ["worse"]
    with pytest.raises(ValueError, match="direction=up"):
        verdicts(scores, "up")
    with pytest.raises(ValueError, match="baseline=c is not one of the models: a, b"):
        verdicts(scores, "higher", baseline="c")


@pytest.mark.parametrize(("seeds", "reason"), [(1, "one seed"), (2, "two seeds")])
def test_few_seeds_decide_nothing_however_far_apart(seeds: int, reason: str) -> None:
    [verdict] = verdicts(study([1.0, 1.1][:seeds], [9.0, 9.1][:seeds]), "lower")
    assert (verdict.verdict, verdict.reason, math.isnan(verdict.p)) == ("undecided", reason, True)
    assert verdict.difference == pytest.approx(8.0)


def test_a_model_with_one_seed_does_not_stop_the_others() -> None:
    found = verdicts(study([1.0, 1.01, 1.02], [2.0, 2.01, 2.02], [3.0]), "lower")
    assert pair(found, "a", "b").verdict == "better"
    assert pair(found, "a", "c").reason == pair(found, "b", "c").reason == "one seed"


def test_no_spread_at_all_is_not_tested() -> None:
    found = verdicts(study([1.0] * 3, [0.5] * 3, [0.1] * 3), "higher")
    assert {(v.verdict, v.reason) for v in found} == {("undecided", "no spread")}
    [two] = verdicts(study([1.0] * 3, [0.5] * 3), "higher")
    assert two.reason == "no spread"


def test_a_model_without_spread_beside_others_is_tested_by_theirs() -> None:
    found = verdicts(study([1.0] * 5, [0.5, 0.52, 0.48, 0.51, 0.5], [0.5, 0.51, 0.52, 0.49, 0.5]), "higher")
    assert pair(found, "a", "b").verdict == "better"
    assert pair(found, "b", "c").verdict == "undecided"


def test_identical_scores_are_no_difference() -> None:
    same = [0.5, 0.6, 0.7]
    [verdict] = verdicts(study(same, same), "higher")
    assert (verdict.difference, verdict.verdict) == (0.0, "undecided")
    assert verdict.p == pytest.approx(1.0)
    assert verdict.seeds_to_decide is None


def test_scores_that_are_no_numbers_do_not_count() -> None:
    found = verdicts(study([1.0, 1.1, math.nan, 1.05], [math.nan] * 3), "higher")
    assert found[0].reason == "no seed"
    assert math.isnan(found[0].difference)


def test_shared_seeds_take_differences_within_seeds() -> None:
    shift = [0.0, 1.0, -1.0, 2.0]  # of a seed, the same for all models
    noise = np.random.default_rng(0).normal(0, 0.01, (3, 4))
    arms = [[base + s + e for s, e in zip(shift, row, strict=True)] for base, row in enumerate(noise)]
    apart, blocked = (verdicts(study(*arms), "higher", shared_seeds=shared) for shared in (False, True))
    assert {v.verdict for v in apart} == {"undecided"}
    assert {v.verdict for v in blocked} == {"better"}
    assert {v.test for v in blocked} == {"paired t, Benjamini-Hochberg"}


def test_shared_seeds_of_two_models_are_the_paired_t_test() -> None:
    a, b = [2.40, 2.50, 2.30, 2.45], [2.45, 2.58, 2.33, 2.51]
    scores = {"a": dict(enumerate(a)), "b": {**dict(enumerate(b)), 9: 1.0}}  # seed 9 has no partner
    [verdict] = verdicts(scores, "lower", shared_seeds=True)
    assert verdict.p == pytest.approx(stats.ttest_rel(b, a).pvalue, rel=1e-4)
    assert (verdict.seeds, verdict.test) == (4, "paired t")


def test_a_killed_seed_leaves_the_others() -> None:
    found = verdicts(study([1.0, 1.01, 1.02, 1.0], [2.0, 2.01, 2.02], [3.0, 3.01, 2.98, 3.0]), "lower")
    assert {v.verdict for v in found} == {"better"}
    assert {pair(found, "a", "b").seeds, pair(found, "a", "c").seeds} == {3, 4}


def test_a_family_of_36_models_is_corrected_as_one() -> None:
    rng = np.random.default_rng(0)
    arms = rng.normal(0, 1, (36, 5))
    found = verdicts(study(*arms.tolist()), "higher")
    assert len(found) == 630
    assert not [v for v in found if v.verdict != "undecided"]
    least = min(stats.ttest_ind(arms[i], arms[j]).pvalue for i, j in combinations(range(36), 2))
    assert least < 0.01  # without a correction some would be called different
