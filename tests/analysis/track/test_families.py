"""Strengths of models over workloads, undecided pairs, fronts, and the map, from verdicts made up by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from analysis.stats.comparisons import UNLEARNED
from analysis.track import overview as overview_module
from analysis.track.families import cells, fronts, strengths, undecided
from analysis.track.overview import overview
from analysis.track.results import tally
from analysis.track.rules import Track, Workload, read_track


@pytest.fixture
def track() -> Track:
    workloads = [Workload(name="recall", target=0.9), Workload(name="text", target=2.6)]
    return replace(read_track("cpu"), workloads=workloads, backbones=["decoder", "mamba", "s4"], stored=None)


def arm(name: str, task: str, score: float, state: float = 1024.0, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "arm", "arm": name, "task": task, "seeds": 5, "score": score, "learned": True,
        "likelihood": "exact" if task == "text" else None, "state_bytes_2k": state,
        "direction": "lower" if task == "text" else "higher",
    } | changes  # fmt: skip


def pair(task: str, model: str, other: str, verdict: str, reason: str = "") -> dict[str, Any]:
    likelihood = "exact" if task == "text" else None
    own = {"task": task, "likelihood": likelihood, "model": model, "other": other}
    return own | {"verdict": verdict, "reason": reason}


ARMS = pd.DataFrame(
    [
        arm("decoder", "recall", 1.0, state=4096), arm("mamba", "recall", 0.95, state=2048),
        arm("s4", "recall", 0.2, state=3000, learned=False),
        arm("decoder", "text", 3.1, state=4096), arm("mamba", "text", 2.5, state=2048),
        arm("s4", "text", 2.7),
    ]
)  # fmt: skip
PAIRS = pd.DataFrame(
    [
        pair("recall", "decoder", "mamba", "better"), pair("recall", "decoder", "s4", "better"),
        pair("recall", "mamba", "s4", "better"), pair("text", "decoder", "mamba", "worse"),
        pair("text", "decoder", "s4", "worse"), pair("text", "mamba", "s4", "undecided"),
    ]
)  # fmt: skip


def test_a_model_leads_where_it_is_better_than_more_models_than_it_is_worse_than(track: Track) -> None:
    found = strengths(track, ARMS, PAIRS).set_index("model")
    assert found.loc["decoder"].tolist() == ["recall", "recall", "", "text", ""]
    assert found.loc["mamba"].tolist() == ["recall, text", "text", "recall", "", ""]
    assert found.loc["s4"].tolist() == ["", "text", "", "recall", ""]
    assert cells(found.reset_index())[2] == ["s4", "-", "text", "-", "recall", "-"]


def test_a_model_that_nobody_was_compared_with_is_open(track: Track) -> None:
    found = strengths(track, ARMS, PAIRS[PAIRS["task"] == "text"]).set_index("model")
    assert set(found["open"]) == {"recall"}


def test_undecided_pairs_are_named() -> None:
    assert undecided(PAIRS) == ["text: 1 of 3 pairs: mamba and s4"]
    several = [pair("recall", "a", "b", "undecided"), pair("recall", "c", "b", "undecided")]
    more = pd.DataFrame([*several, pair("recall", "a", "c", "better")])
    assert undecided(more) == ["recall: 2 of 3 pairs: b and a, c"]


def test_two_models_that_have_not_learned_a_workload_are_not_counted() -> None:
    apart = pair("text", "decoder", "rwkv", "undecided", UNLEARNED)
    more = pd.concat([PAIRS, pd.DataFrame([apart])], ignore_index=True)
    assert undecided(more) == undecided(PAIRS)
    assert tally(more).equals(tally(PAIRS))


def test_a_front_leaves_out_what_another_beats_in_score_and_state(track: Track) -> None:
    found = fronts(track, ARMS)
    assert found["task"].tolist() == ["recall", "text"]
    assert found["front"].tolist() == [
        "mamba 0.950 (2 KiB), decoder 1.000 (4 KiB)", "s4 2.700 (1 KiB), mamba 2.500 (2 KiB)",
    ]  # fmt: skip


def test_the_map_has_a_field_for_each_score(track: Track, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview_module, "with_differences", lambda runs: ARMS)
    monkeypatch.setattr(overview_module, "comparisons", lambda runs: PAIRS)
    figure = overview(track, ARMS)
    assert figure is not None
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["decoder", "mamba", "s4"]
    assert [text.get_text() for text in axes.texts] == [f"{s:.3f}" for s in (1, 3.1, 0.95, 2.5, 0.2, 2.7)]
    shares = axes.collections[0].get_array()
    assert shares is not None
    assert shares.ravel().tolist() == [1, -1, 0, 0.5, -1, 0.5]
