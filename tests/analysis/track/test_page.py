"""The page of a track, its table of scores and its map, from verdicts made up by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from archbench.analysis.declared.tracks import Track, Workload, read_track
from archbench.analysis.stats.pairs import UNLEARNED
from archbench.analysis.track.overview import overview
from archbench.analysis.track.page import TrackResults, track_markdown
from archbench.analysis.track.results import both_directions, score_table, tally, unbeaten


@pytest.fixture
def track() -> Track:
    workloads = [Workload(name="recall", target=0.9), Workload(name="text", target=2.6)]
    return replace(read_track("cpu"), workloads=workloads, backbones=["decoder", "mamba", "s4"], stored=None)


def arm(name: str, task: str, score: float, state: float = 1024.0, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "arm", "arm": name, "task": task, "seeds": 5, "score": score, "learned": True,
        "likelihood": "exact" if task == "text" else None, "state_bytes_2k": state,
        "direction": "lower" if task == "text" else "higher", "status": "complete", "low": score - 0.1,
        "high": min(score + 0.1, 1.0) if task == "recall" else score + 0.1,
        "metric": "bits_per_byte" if task == "text" else "answer_accuracy",
    } | changes  # fmt: skip


def pair(task: str, model: str, other: str, verdict: str, reason: str = "") -> dict[str, Any]:
    likelihood = "exact" if task == "text" else None
    own = {"task": task, "likelihood": likelihood, "model": model, "other": other}
    return own | {"verdict": verdict, "reason": reason}


ARMS = pd.DataFrame(
    [
        arm("decoder", "recall", 1.0, state=4096), arm("mamba", "recall", 0.95, state=2048),
        arm("s4", "recall", 0.2, state=3000, learned=False),
        arm("mamba", "text", 2.5, state=2048), arm("s4", "text", 2.7),
        arm("decoder", "text", 3.1, state=4096), arm("xz", "text", 3.0, kind="reference"),
    ]
)  # fmt: skip
PAIRS = pd.DataFrame(
    [
        pair("recall", "decoder", "mamba", "better"), pair("recall", "decoder", "s4", "better"),
        pair("recall", "mamba", "s4", "better"), pair("text", "decoder", "mamba", "worse"),
        pair("text", "decoder", "s4", "worse"), pair("text", "mamba", "s4", "undecided"),
    ]
)  # fmt: skip


def results(arms: pd.DataFrame, pairs: pd.DataFrame) -> TrackResults:
    runs = arms[["task", "arm"]].assign(status="complete", message=None)
    reached = pd.DataFrame(columns=["task", "arm", "flops"])
    empty = pd.DataFrame()
    return TrackResults(
        runs=runs,
        arms=arms,
        pairs=pairs,
        scores=arms,
        reached=reached,
        carried=empty,
        early=empty,
        slices=empty,
    )


def test_the_page_begins_with_the_best_model_of_each_workload(track: Track) -> None:
    page = track_markdown(track, results(ARMS, PAIRS))
    assert "likelihood type is better: decoder 1, mamba 1, s4 1." in page
    assert "| recall | - | decoder | 1.000 [0.900, 1.000] | 2 of 2 | - | - |" in page
    assert "| text | exact | mamba | 2.500 [2.400, 2.600] | 1 of 2 | s4 | 3.000 xz |" in page


def test_the_page_lists_the_files_that_are_not_empty(track: Track) -> None:
    page = track_markdown(track, results(ARMS, PAIRS))
    assert "(cpu_pairs.csv)" in page
    assert "(cpu_slices.csv)" not in page


def test_a_score_that_needs_no_learning_is_in_brackets(track: Track) -> None:
    page = track_markdown(track, results(ARMS, PAIRS))
    assert "| s4 | (0.200) | 2.700 |" in page


def test_a_model_that_has_not_learned_a_workload_does_not_count_as_unbeaten() -> None:
    undecided = PAIRS.assign(verdict="undecided")
    counts = unbeaten(both_directions(undecided), ARMS.assign(runs=5))
    assert counts.to_dict() == {"decoder": 2, "mamba": 2, "s4": 1}  # s4 has not learned recall


def test_two_models_that_have_not_learned_a_workload_are_not_counted() -> None:
    apart = pair("text", "decoder", "rwkv", "undecided", UNLEARNED)
    more = pd.concat([PAIRS, pd.DataFrame([apart])], ignore_index=True)
    assert tally(more).equals(tally(PAIRS))


def test_scores_targets_rates_and_variants_are_one_table() -> None:
    mamba = {"task": "recall", "arm": "mamba"}
    held_out = pd.DataFrame([mamba | {"variant": "longer", "score": 0.5}])
    reached = pd.DataFrame([mamba | {"target": 0.9, "reached": 4, "runs": 5, "tokens": 1.0, "flops": 2.0}])
    rates = pd.DataFrame([{"task": "recall", "backbone": "mamba", "learning_rate": 0.01, "edge": "upper"}])
    table = score_table(ARMS.assign(runs=5), held_out, reached, rates).set_index(["task", "arm", "kind"])
    row = table.loc[("recall", "mamba", "arm")]
    assert row[["score", "reached_runs", "flops_to_target", "learning_rate"]].tolist() == [0.95, 4, 2, 0.01]
    assert table.loc[("recall", "mamba", "held out"), "score"] == 0.5
    assert len(table) == len(ARMS) + 1


def test_the_map_has_a_field_for_each_score(track: Track) -> None:
    figure = overview(track, ARMS, PAIRS)
    assert figure is not None
    [cells] = figure.data
    assert cells.y == ("decoder", "mamba", "s4")
    assert [text for row in cells.text for text in row] == [f"{s:.3f}" for s in (1, 3.1, 0.95, 2.5, 0.2, 2.7)]
    assert [share for row in cells.z for share in row] == [1, -1, 0, 0.5, -1, 0.5]
