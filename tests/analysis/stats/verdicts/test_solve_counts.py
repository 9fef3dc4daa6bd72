"""Solve counts: Boschloo's test against SciPy's, and the family that is corrected by Holm."""

from __future__ import annotations

import math

import pytest

from analysis.stats.verdicts.exact_tests import boschloo
from analysis.stats.verdicts.solve_counts import holm, solve_verdicts


def test_holm_by_hand() -> None:
    # Sorted: .01 * 4, .02 * 3, .03 * 2 (held at .06), .9 * 1.
    assert holm([0.03, 0.01, 0.9, 0.02]) == pytest.approx([0.06, 0.04, 0.9, 0.06])
    assert holm([0.5, 0.6]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_ten_seeds_decide_against_a_baseline() -> None:
    found = solve_verdicts({"a": (10, 10), "b": (3, 10), "c": (4, 10)}, baseline="b")
    assert [(v.model, v.other, v.verdict) for v in found] == [("a", "b", "better"), ("c", "b", "undecided")]
    assert found[0].p == pytest.approx(2 * boschloo((10, 10), (3, 10)))
    assert found[0].difference == pytest.approx(0.7)
    assert 0 < found[0].low < 0.7 < found[0].high <= 1
    assert found[1].seeds_to_decide is None
    assert "solve rate" in found[0].test


def test_of_all_pairs_the_false_discovery_rate_is_held() -> None:
    solved, never = {"a": (5, 5), "b": (5, 5)}, dict.fromkeys("cdefg", (0, 5))
    found = solve_verdicts(solved | never | {"h": (3, 5)})
    raw = boschloo((5, 5), (0, 5))
    decided = {(v.model, v.other) for v in found if v.verdict == "better"}
    assert decided == {(model, other) for model in solved for other in never}
    clear = next(v for v in found if (v.model, v.other) == ("a", "c"))
    assert clear.p == pytest.approx(raw * 28 / 10), "ten of 28 pairs are as clear"
    assert clear.low > 0
    # A single clear pair among many is none: six models that never solve it, one that does.
    alone = solve_verdicts({"a": (5, 5), "b": (0, 5)} | dict.fromkeys("cdefgh", (3, 5)))
    assert not [v for v in alone if v.verdict == "better"]


PLATEAU = {name: [0.30 + 0.002 * i + 0.01 * k for k in range(5)] for i, name in enumerate("cdefgh")}
PARTLY = {"a": [0.99, 0.98, 0.97, 0.45, 0.99], "b": [0.72, 0.79, 0.67, 0.66, 0.80]}


def counted(scores: dict[str, list[float]]) -> dict[str, tuple[int, int]]:
    return {name: (sum(score >= 0.95 for score in own), len(own)) for name, own in scores.items()}


def test_ranks_tell_partial_solvers_from_a_plateau() -> None:
    scores = PARTLY | PLATEAU
    assert not [v for v in solve_verdicts(counted(scores)) if v.verdict == "better"]
    found = solve_verdicts(counted(scores), scores, margin=0.01)
    better = {(v.model, v.other): v for v in found if v.verdict == "better"}
    assert set(better) == {(model, other) for model in PARTLY for other in PLATEAU}
    one = better["b", "c"]
    assert one.test == "Wilcoxon, scores"
    assert one.low == pytest.approx(0.66 - 0.34)
    assert one.high == pytest.approx(0.80 - 0.30)
    assert one.low < one.difference < one.high
    assert one.p == pytest.approx(2 * (2 / 252) * 28 / 12), (
        "each test has half of the level; 12 of 28 are as clear"
    )


def test_a_difference_within_the_margin_is_not_called_better() -> None:
    # All ranks of "a" are higher, by less than the margin.
    scores = {"a": [0.305 + 0.0001 * k for k in range(5)], "x": [0.99, 0.4, 0.98, 0.4, 0.45]}
    scores |= {name: [0.30 + 0.0001 * k + 0.00001 * i for k in range(5)] for i, name in enumerate("bcdef")}
    found = [
        v for v in solve_verdicts(counted(scores), scores, margin=0.01) if {v.model, v.other} == {"a", "b"}
    ]
    assert [(v.verdict, v.reason) for v in found] == [("undecided", "below the margin")]


def test_two_models_a_baseline_and_few_seeds_are_compared_by_counts_alone() -> None:
    two = {"a": PARTLY["a"], "b": PLATEAU["c"]}
    (pair,) = solve_verdicts(counted(two), two)
    assert pair.p == pytest.approx(boschloo((4, 5), (0, 5)))
    scores = PARTLY | PLATEAU
    against = solve_verdicts(counted(scores), scores, baseline="c")
    assert against == solve_verdicts(counted(scores), baseline="c")
    short = {name: own[:4] for name, own in scores.items()}
    by_counts = solve_verdicts(counted(short))
    assert repr(solve_verdicts(counted(short), short)) == repr(by_counts)  # NaN does not equal NaN


def test_five_seeds_say_what_would_decide() -> None:
    found = solve_verdicts({"a": (5, 5), "b": (2, 5), "c": (2, 5), "d": (4, 5)})
    pair = next(v for v in found if {v.model, v.other} == {"a", "b"})
    assert (pair.model, pair.verdict) == ("a", "undecided")
    assert pair.seeds_to_decide is not None
    assert 6 < pair.seeds_to_decide < 20
    assert math.isnan(next(v for v in solve_verdicts({"a": (3, 3), "b": (1, 3), "c": (1, 3)})).detectable)


def test_too_few_seeds_are_not_tested() -> None:
    [verdict] = solve_verdicts({"a": (2, 2), "b": (0, 3)})
    assert (verdict.verdict, verdict.reason) == ("undecided", "two seeds")
