"""The frame of a track and what is made of it, without training."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from archbench.analysis.declared import runs as declared_runs
from archbench.analysis.declared.scored_runs import newest_settings, scored_runs, with_score
from archbench.analysis.declared.tracks import Track, Workload, read_track
from archbench.analysis.declared.tuning import rate_rows, write_rates
from archbench.analysis.track import __main__ as command
from archbench.analysis.track.__main__ import TrackConfig, track_results
from archbench.analysis.track.overview import overview
from archbench.analysis.track.page import fill_page, track_markdown
from archbench.analysis.track.results import held_out


@pytest.fixture
def track() -> Track:
    workload = Workload(
        name="parity", scored="sequence_length=64", held_out={"longer": "sequence_length=128"}
    )
    return replace(read_track("cpu"), workloads=[workload], stored=None)


def row(**changes: Any) -> dict[str, Any]:
    plain = {
        "study": "track_cpu", "cell": "decoder-parity-nano", "digest": "a", "seed": 0, "task": "parity",
        "scale": "nano", "backbone": "decoder", "status": "complete", "score": 0.9,
        "score_standard_error": 0.01, "score_setting": "all", "finished_at": "2026-01-01",
        "learning_rate": 0.001, "batch_size": 16, "metric": "answer_accuracy",
        "direction": "higher", "validation": 0.9, "matched_axis": "flops", "matched_target": 1.0,
        "references": "[]", "slices": None,
        "further": json.dumps({"sequence_length=64": 0.7, "sequence_length=128": 0.6}),
    }  # fmt: skip
    return plain | changes


def test_a_workload_is_scored_where_it_says(track: Track) -> None:
    found = scored_runs(track, pd.DataFrame([row()]))
    assert found["score"].tolist() == [0.7]
    assert math.isnan(found["score_standard_error"].iloc[0])
    assert held_out(track, found)["score"].tolist() == [0.6]


def test_a_run_without_that_score_is_not_complete() -> None:
    frame = pd.DataFrame([row(further="{}")])
    assert with_score(frame, frame["seed"] == 0, "sequence_length=64")["status"].tolist() == ["unscored"]


def test_of_several_settings_of_a_model_the_newest_that_ended_counts(track: Track) -> None:
    rows = [
        row(), row(seed=1), row(digest="b", finished_at="2026-01-02"),
        row(digest="c", finished_at="2026-01-03", status="refused"),
    ]  # fmt: skip
    assert scored_runs(track, pd.DataFrame(rows))["digest"].tolist() == ["b"]
    both = pd.DataFrame([*rows, row(digest="c", task="text", finished_at="2026-01-03")])
    assert newest_settings(both)[["task", "digest"]].values.tolist() == [["parity", "b"], ["text", "c"]]


@pytest.mark.parametrize(("fixed", "validations"), [(True, [0.5]), (False, [0.5, 0.9])])
def test_with_a_fixed_grid_rates_are_chosen_from_it_only(
    track: Track, fixed: bool, validations: list[float]
) -> None:
    tuning = {"study": "track_cpu_rates", "seed": 100}
    rows = [
        row(**tuning), row(**tuning, validation=0.5, finished_at="2026-01-02"),
        row(**tuning | {"learning_rate": 0.5}, validation=0.9), row(**{**tuning, "seed": 0}), row(),
    ]  # fmt: skip
    chosen = rate_rows(replace(track, fixed_grid=fixed), pd.DataFrame(rows))
    assert chosen["validation"].tolist() == validations, "of two with the same rate the newer counts"


def searched_losses(rate: float, seed: int) -> float:
    return 2.0 + 0.3 * math.log10(rate / 0.006) ** 2 + 0.001 * seed


BOTH = "decoder,mamba"


@pytest.mark.parametrize(
    ("settings", "rounds", "choice"),
    [
        (
            {"protocol": "1.0"},
            [f"{BOTH} 0.003", f"{BOTH} 0.001,0.01", f"{BOTH} 0.03", f"{BOTH} 0.0056,0.018"],
            [0.0056, 6, ""],
        ),
        ({}, [f"{BOTH} 0.003", f"{BOTH} 0.001", f"{BOTH} 0.01", f"{BOTH} 0.03"], [0.01, 4, ""]),
        ({"fixed_grid": True}, [f"{BOTH} 0.003"], [0.003, 1, "lower"]),
    ],
    ids=["protocol", "until inside", "fixed"],
)
def test_rates_are_trained_until_the_search_of_each_model_ends(
    track: Track, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any],
    rounds: list[str], choice: list[Any],
) -> None:  # fmt: skip
    track = replace(track, learning_rates=[0.003], tuning_seeds=[100, 101], tuned=False, **settings)
    tuning = {"study": track.rates_folder, "metric": "bits_per_byte", "direction": "lower"}
    rows: list[dict[str, Any]] = []
    trained = []

    def train(words: list[str], name: str) -> int:
        chosen = dict(word.split("=", 1) for word in words if "=" in word)
        assert (chosen["study"], chosen[track.group]) == (track.rates_study, "parity")
        backbones, rates = chosen["backbone"], chosen.get("optimizer.learning_rate", "0.003")
        trained.append(f"{backbones} {rates}")
        trials = [
            (b, float(r), s) for b in backbones.split(",") for r in rates.split(",") for s in (100, 101)
        ]
        rows.extend(
            row(**tuning, backbone=b, learning_rate=r, seed=s, validation=searched_losses(r, s))
            for b, r, s in trials
        )
        return len(trials)

    for module in (command, declared_runs):
        monkeypatch.setattr(module, "train_missing", train)
    monkeypatch.setattr(command, "track_frame", lambda *_: pd.DataFrame(rows))
    part = replace(
        command.prepare(TrackConfig(track="cpu", runs=str(tmp_path))),
        track=track, workloads=["parity"], backbones=["decoder", "mamba"],
    )  # fmt: skip
    assert command._tune(part, "parity") == 2 * 2 * choice[1]
    assert trained == rounds
    best = write_rates(track, pd.DataFrame(rows), tmp_path)
    assert best[["learning_rate", "rates", "edge"]].values.tolist() == [choice] * 2


def test_before_the_first_test_seed_the_page_lists_what_is_not_run(track: Track) -> None:
    runs = scored_runs(track, pd.DataFrame([row(study="track_cpu_rates", seed=100)]))
    rates = pd.DataFrame(columns=["task", "backbone", "learning_rate", "edge"])
    results = track_results(track, runs, rates)
    assert "not run: parity" in track_markdown(track, results)
    assert results.scores.empty
    assert overview(track, results.arms, results.pairs) is None


def test_a_page_keeps_what_stands_around_its_tables() -> None:
    page = "before\n<!-- tables:begin -->\nold\n<!-- tables:end -->\nafter\n"
    assert fill_page(page, "new\n") == page.replace("old", "new")
    with pytest.raises(ValueError, match="no lines"):
        fill_page("nothing", "new\n")


def test_the_search_of_a_model_is_that_of_the_tuning_runs(track: Track) -> None:
    """The best and the second-best rate; none where the score is another evaluation than the tuned one."""
    digits = Workload(name="digits")
    track = replace(track, workloads=[*track.workloads, digits], tuning_seeds=[100])
    trials = [(0.001, 0.4), (0.003, 0.8), (0.01, 0.7), (0.03, math.nan)]
    rows = [
        row(study=track.rates_folder, task=task, seed=100, learning_rate=rate, validation=score)
        for task in ("parity", "digits")
        for rate, score in trials
    ]
    rows += [row(), row(task="digits"), row(task="digits", backbone="mamba")]
    runs = scored_runs(track, pd.DataFrame(rows)).set_index(["task", "arm"])
    columns = ["tuning_validation", "tuning_second_validation"]
    assert runs.loc[("digits", "decoder"), columns].tolist() == [0.8, 0.7]
    assert runs.loc[("digits", "mamba"), columns].isna().all()
    assert runs.loc[("parity", "decoder"), columns].isna().all()
