"""The bridge: rank correlations between two frames with the same models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.compare import main, read_probes
from analysis.figures.bridge import bridge_figure
from analysis.load.study import load_study
from analysis.stats.bridge import WHOLE, bridge
from analysis.tables.bridge import bridge_sentences
from tests.results import write_result

MODELS = ("decoder", "mamba", "s4", "moe", "hybrid", "gla")
RECALL = (0.9, 0.5, 0.4, 0.8, 0.95, 0.6)
"""Accuracy of each model on a probe: that of attention goes with what it repeats from the window."""
TEXT = (2.4, 2.1, 2.2, 2.35, 2.05, 2.3)
REPEATED = (1.0, 1.4, 1.5, 1.1, 0.9, 1.3)
"""Bits per token that repeats an n-gram: in the very order of ``RECALL``."""


@pytest.fixture
def both(write_run: Any, tmp_path: Path) -> Path:
    """Two studies, of probes and of a text, with six models and two seeds each."""
    for model, recall, text, repeated in zip(MODELS, RECALL, TEXT, REPEATED, strict=True):
        for seed in range(2):
            off = 0.001 * seed
            write_run(model, seed, recall + off, study="probes", task="recall", likelihood=None)
            write_run(model, seed, 1 - recall + off, study="probes", task="copying", likelihood=None)
            folder = write_run(model, seed, text + off, study="bridge")
            record = json.loads((folder / "result.json").read_text())
            record["metrics"][0]["slices"] = [
                {
                    "by": "recall", "name": name, "bits": bits * 100, "tokens": 100.0, "bytes": 100.0,
                    "cluster_totals": [[bits * 50, 50.0]] * 2,
                }
                for name, bits in (("new", 2 * text - repeated), ("repeats", repeated))
            ]  # fmt: skip
            write_result(folder, record)
    return tmp_path / "runs"


def test_a_probe_predicts_the_slice_that_it_was_made_for(both: Path) -> None:
    table = bridge(load_study(both, "probes"), load_study(both, "bridge"))
    found = table.set_index(["target", "task"])
    assert found.loc[("repeats", "recall"), "rho"] == pytest.approx(1)
    assert found.loc[("repeats", "copying"), "rho"] == pytest.approx(-1)
    assert found.loc[(WHOLE, "recall"), "rho"] < 0.5
    assert (found["models"] == len(MODELS)).all()
    assert (found["p_corrected"] >= found["p"]).all()
    assert table["target"].tolist()[:2] == [WHOLE, WHOLE]


def test_a_model_that_did_not_finish_is_left_out(both: Path, write_run: Any) -> None:
    write_run("transformer", 0, None, study="probes", task="recall", status="diverged", likelihood=None)
    table = bridge(load_study(both, "probes"), load_study(both, "bridge"))
    assert (table["models"] == len(MODELS)).all()


def test_a_text_of_two_tasks_is_refused(both: Path) -> None:
    with pytest.raises(ValueError, match="the text has 2 tasks"):
        bridge(load_study(both, "bridge"), load_study(both, "probes"))


def test_the_sentence_says_how_little_few_models_can_show(both: Path) -> None:
    table = bridge(load_study(both, "probes"), load_study(both, "bridge"))
    (sentence,) = bridge_sentences(table)
    assert sentence.startswith(
        "exact: of 2 workloads, those whose order of 6 models surely goes with that on"
    )
    assert "With 80% power so few models show a rho of 0.96 or more" in sentence
    assert bridge_figure(table) is not None


def test_a_track_counts_under_the_scores_that_its_rules_name(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {
        "study": "track_cpu", "cell": "decoder-parity-nano", "digest": "a", "seed": 0, "task": "parity",
        "backbone": "decoder", "status": "complete", "score": 0.9, "score_standard_error": 0.01,
        "score_setting": "all", "finished_at": "2026-01-01", "references": "[]",
        "further": json.dumps({"sequence_length=64": 0.7}),
    }  # fmt: skip
    monkeypatch.setattr("analysis.compare.track_frame", lambda track, runs: pd.DataFrame([row]))
    found = read_probes("cpu", Path("runs"))
    assert found[["arm", "task", "score"]].values.tolist() == [["decoder", "parity", 0.7]]


@pytest.mark.usefixtures("no_page")
def test_the_command_reads_studies_and_frames(
    both: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = load_study(both, "probes").drop(columns=["path", "arm"])  # as frames of tracks are
    frame.to_parquet(tmp_path / "probes.parquet")
    load_study(both, "bridge").to_parquet(tmp_path / "text.parquet")
    sides = (["study=bridge", "probes=probes"], [f"frame={tmp_path / 'text.parquet'}", "probes=probes"],
             ["study=bridge", f"probes={tmp_path / 'probes.parquet'}"])  # fmt: skip
    for number, words in enumerate(sides):
        assert main([*words, f"runs={both}", f"out={tmp_path}/{number}"]) == 0
    for name in ("bridge.csv", "bridge.md", "bridge.svg"):
        assert len({(tmp_path / str(number) / name).read_bytes() for number in range(len(sides))}) == 1
    assert "| recall | 6 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message", "code"),
    [
        (["study=bridge", "probes=two.parquet"], "has runs of multiple studies: probes, probes_rates", 2),
        (["study=bridge", "probes=none.parquet"], "none.parquet cannot be read", 3),
        (["frame=none.parquet"], "none.parquet cannot be read", 3),
        (["study=few", "probes=probes"], "fewer than five models", 2),
    ],
)
def test_mistakes_are_one_line(
    both: Path,
    write_run: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
    code: int,
) -> None:
    monkeypatch.chdir(both)
    write_run("decoder", 0, 2.0, study="few")
    frame = load_study(both, "probes")
    pd.concat([frame, frame.assign(study="probes_rates", score=0.5)]).to_parquet("two.parquet")
    assert main([*words, f"runs={both}"]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
