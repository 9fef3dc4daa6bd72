"""Tokens and FLOPs to a target, and performance profiles."""

from __future__ import annotations

import json
import math

import pandas as pd
import pytest

from archbench.analysis.stats.targets.target_profiles import performance_profiles, to_target


def runs(arm: str, *curves: list[float], task: str = "a", status: str = "complete") -> pd.DataFrame:
    """Runs whose validation scores stand at 10, 20, ... tokens of 2 FLOPs each."""
    texts = [json.dumps([[i, 10 * i, 20 * i, v] for i, v in enumerate(curve, 1)]) for curve in curves]
    frame = pd.DataFrame({"curve": texts}).assign(task=task, arm=arm, status=status)
    return frame.assign(score=1.0, direction="higher", seed=range(len(texts)))


def test_the_median_counts_runs_that_never_reach_the_target_as_infinite() -> None:
    frame = pd.concat([runs("fast", [0.5, 1.0], [0.0, 1.0], [0.0, 0.1]), runs("slow", [0.2], [0.1], [1.0])])
    found = to_target(frame, {"a": 0.75}).set_index("arm")
    assert found.loc["fast", "tokens"] == pytest.approx(17.5), "the later of the two that reach it"
    assert found.loc["fast", "flops"] == pytest.approx(35)
    assert (found.loc["fast", "reached"], found.loc["fast", "runs"]) == (2, 3)
    assert math.isinf(found.loc["slow", "tokens"])


def test_half_of_an_even_number_of_runs_is_not_most() -> None:
    found = to_target(runs("one", [1.0], [0.0]), {"a": 0.5})
    assert math.isinf(found["tokens"].iloc[0])


def test_a_diverged_run_has_not_reached_it_and_an_unfinished_one_does_not_count() -> None:
    frame = pd.concat([runs("one", [1.0]), runs("one", [1.0], status="diverged")])
    assert to_target(frame, {"a": 0.5})["runs"].tolist() == [2]
    assert to_target(runs("one", [1.0], status="incomplete"), {"a": 0.5}).empty


def test_profiles_count_workloads_that_somebody_solves() -> None:
    frame = pd.concat(
        [
            runs("both", [1.0], task="a"), runs("both", [0.0, 1.0], task="b"), runs("both", [0.0], task="c"),
            runs("one", [0.0, 0.0, 1.0], task="a"), runs("one", [0.0], task="c"),
        ]
    )  # fmt: skip
    found = performance_profiles(to_target(frame, dict.fromkeys("abc", 1.0))).set_index("arm")
    assert found.loc["both", 1.0] == 1, "task c is solved by nobody and left out"
    assert found.loc["one", [1.0, 2.0, 3.0]].tolist() == [0, 0, 0.5], "it did not take b"
