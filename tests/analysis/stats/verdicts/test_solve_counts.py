"""Solve counts: verdicts against a baseline (Holm) and of all pairs (Benjamini and Hochberg)."""

from __future__ import annotations

import math

import pytest

from archbench.analysis.stats.verdicts.exact_tests import boschloo
from archbench.analysis.stats.verdicts.solve_counts import solve_verdicts


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


def test_scores_below_the_solution_are_not_compared() -> None:
    """Scores of 0.7 and 0.3 are both unsolved: the counts are equal, and no pair is called equivalent."""
    found = solve_verdicts(dict.fromkeys("abcdef", (0, 5)))
    assert {(v.verdict, v.p, v.difference) for v in found} == {("undecided", 1.0, 0.0)}


def test_an_interval_of_holms_family_agrees_with_its_test() -> None:
    found = solve_verdicts({"b": (0, 8), "m": (4, 8), "n": (5, 8), "o": (5, 8)}, baseline="b")
    assert {v.verdict for v in found} == {"better"}
    assert all(v.low > 0 for v in found)


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
