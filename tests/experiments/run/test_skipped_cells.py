"""A cell that is refused stays a row of its study, and a mended one runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from archbench.analysis.load.study import load_study
from archbench.experiments import train
from archbench.experiments.run.skipped_cells import RequestedCell, refusals
from archbench.experiments.run.summary import summary
from archbench.experiments.runtime.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    LockedError,
    OutOfMemoryError,
)
from tests.experiments import commands
from tests.results import write_result

WORDS = (*commands.TINY, *commands.RECALL, "study.name=mix")
IMPOSSIBLE = ["backbone=decoder", "scale.axis=non_embedding", "scale.targets.non_embedding=10"]


def asked(tmp_path: Path, *words: str) -> RequestedCell:
    return RequestedCell.composed(commands.compose(*WORDS, f"runs={tmp_path}", *words))


def attempt(tmp_path: Path, *words: str) -> None:
    """Train a cell in this process, as a job of a sweep does."""
    train.train(commands.compose(*WORDS, f"runs={tmp_path}", *words))


def results(tmp_path: Path) -> dict[str, dict[str, Any]]:
    found = tmp_path.glob("mix/*/s*/result.json")
    return {path.parent.parent.name: json.loads(path.read_text()) for path in found}


def test_a_sweep_records_what_it_refuses_and_trains_the_others(tmp_path: Path) -> None:
    """The cells fail in turn: while they compose, while they are read, while their size is solved."""
    words = (*WORDS, f"runs={tmp_path}", "backbone=decoder,mambo,encoder", "objective=causal_lm", "seed=3")
    ended = commands.run("train", "-m", *words)
    assert ended.returncode == 2
    frame = load_study(tmp_path, "mix").set_index("backbone")
    assert frame["status"].to_dict() == {"decoder": "complete", "mambo": "refused", "encoder": "refused"}
    assert set(frame["task"]) == {"recall"}
    assert set(frame["scale"]) == {"nano"}
    assert set(frame["seed"]) == {3}
    assert "did you mean 'mamba'?" in frame.loc["mambo", "message"]
    assert "needs a causal backbone" in frame.loc["encoder", "message"]
    assert "study mix: 1 complete, 2 refused" in ended.stdout
    assert f"archbench compare study=mix runs={tmp_path}" in ended.stdout
    assert "at least one run failed" in ended.stderr
    for reason in ("did you mean 'mamba'?", "needs a causal backbone"):
        assert (ended.stdout + ended.stderr).count(reason) == 1
    for path in tmp_path.glob("mix/*/s3/result.json"):
        record = json.loads(path.read_text())
        assert record["status"] == "complete" or record["exit_code"] == 2


def test_a_sweep_of_which_nothing_composes_is_a_mistake_of_the_command(tmp_path: Path) -> None:
    ended = commands.run("train", "-m", *WORDS, f"runs={tmp_path}", "backbone=mambo,decodr", "seed=0,1")
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert not list(tmp_path.glob("mix/*"))


def test_an_impossible_size_is_recorded_in_the_folder_of_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="comes no nearer"):
        attempt(tmp_path, *IMPOSSIBLE)
    folder = commands.settings(*WORDS, f"runs={tmp_path}", *IMPOSSIBLE).folder
    record = commands.result(folder)
    assert (record["status"], record["exit_code"]) == ("refused", 2)
    assert "comes no nearer" in record["message"]
    assert (record["key"], record["backbone"]) == (f"{folder.parent.name}-s0", "decoder")
    assert [found for found, _ in refusals(tmp_path / "mix")] == [folder]
    with pytest.raises(ConfigError, match="comes no nearer"):  # not that its configuration is another one
        attempt(tmp_path, *IMPOSSIBLE)


def test_a_refusal_does_not_stand_in_the_way_of_its_own_run(tmp_path: Path) -> None:
    settings = commands.settings(*WORDS, f"runs={tmp_path}")
    asked(tmp_path).refuse(DataError("no such file"), settings)
    assert commands.result(settings.folder)["status"] == "refused"
    attempt(tmp_path)
    assert commands.result(settings.folder)["status"] == "complete"
    assert not (tmp_path / "mix" / ".refused").exists()


def test_the_words_of_a_mended_cell_take_its_record_away(tmp_path: Path) -> None:
    """A configuration that was mended, in a YAML for example, has another run folder."""
    words = ("backbone=decoder", f"runs={tmp_path}")
    asked(tmp_path, *words).refuse(ConfigError("num_pairs=9"))
    asked(tmp_path, *words, "seed=1").refuse(ConfigError("num_pairs=9"))
    assert len(refusals(tmp_path / "mix")) == 2
    attempt(tmp_path, *words)
    statuses = {folder: record["status"] for folder, record in results(tmp_path).items()}
    assert sorted(statuses.values()) == ["complete", "refused"]
    assert [result.seed for _, result in refusals(tmp_path / "mix")] == [1]


@pytest.mark.parametrize("error", [LockedError("held"), CheckpointError("disk full")])
def test_what_is_no_refusal_is_not_recorded(tmp_path: Path, error: Any) -> None:
    asked(tmp_path).refuse(error)
    assert not (tmp_path / "mix").exists()


def test_running_out_of_memory_before_the_first_step_is_recorded_as_that(tmp_path: Path) -> None:
    asked(tmp_path).refuse(OutOfMemoryError("too large"))
    ((_, record),) = results(tmp_path).items()
    assert (record["status"], record["exit_code"]) == ("oom", 5)


@pytest.mark.parametrize("file", ["metrics.jsonl", "checkpoints", "result.json"])
def test_a_run_that_has_begun_keeps_its_record(tmp_path: Path, file: str) -> None:
    settings = commands.settings(*WORDS, f"runs={tmp_path}")
    settings.folder.mkdir(parents=True)
    if file == "result.json":
        write_result(settings.folder, {"status": "preempted"})
    elif file == "checkpoints":
        (settings.folder / file).mkdir()
    else:
        (settings.folder / file).write_text("{}\n")
    asked(tmp_path).refuse(ConfigError("the data has changed"), settings)
    left = settings.folder / "result.json"
    assert not left.exists() or json.loads(left.read_text())["status"] == "preempted"


@pytest.mark.parametrize("name", ["..", "../out", "a/b", ".hidden"])
def test_a_study_whose_name_leads_elsewhere_gets_no_record(tmp_path: Path, name: str) -> None:
    asked(tmp_path / "runs", f"study.name={name}").refuse(ConfigError("study.name"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seed", ["-1", "x", "1.5"])
def test_what_is_no_seed_is_not_recorded_as_another(tmp_path: Path, seed: str) -> None:
    sweep = commands.compose(*WORDS, f"runs={tmp_path}")
    RequestedCell.uncomposed(sweep, [f"seed={seed}", "study.name=mix"]).refuse(ConfigError("no seed"))
    assert not (tmp_path / "mix").exists()


def test_a_negative_seed_that_composes_leaves_one_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seed=-1 must be a whole number from 0"):
        attempt(tmp_path, "seed=-1")
    assert not (tmp_path / "mix").exists()


def test_a_single_run_outside_of_a_study_leaves_nothing(tmp_path: Path) -> None:
    asked(tmp_path, "study.name=single").refuse(ConfigError("num_pairs=9"))
    assert not (tmp_path / "single").exists()


def test_names_of_a_cell_that_does_not_compose_stay_inside_the_study(tmp_path: Path) -> None:
    cell = RequestedCell(
        study=tmp_path / "mix", words=["backbone=../../out"], seed=2,
        names={"backbone": "../../out", "objective": "causal_lm", "task": "recall", "scale": "nano"},
        config=None, in_study=True,
    )  # fmt: skip
    cell.refuse(ConfigError("no such file"))
    assert list(results(tmp_path)) == [f"______out-recall-nano-{cell.digest}"]


def test_the_summary_counts_and_explains(tmp_path: Path) -> None:
    study = tmp_path / "mix"
    written = {
        "a-recall-nano-1/s0": {"status": "complete"},
        "a-recall-nano-1/s1": {"status": "diverged", "message": "loss is nan\nmore"},
        "b-recall-nano-2/s0": {"status": "refused", "message": "no data"},
        "b-recall-nano-2/s1": {"status": "refused", "message": "no data"},
        "c-recall-nano-3/s0": None,
        "d-recall-nano-4/s0": "{",
    }
    for name, record in written.items():
        (study / name).mkdir(parents=True)
        if isinstance(record, dict):
            write_result(study / name, record)
        elif record is not None:
            (study / name / "result.json").write_text(record)
    lines = summary(study)
    assert lines[0] == "study mix: 1 complete, 1 diverged, 2 refused, 1 incomplete, 1 unreadable"
    assert "  a-recall-nano-1 s1: diverged: loss is nan" in lines
    assert "  b-recall-nano-2 s0, b-recall-nano-2 s1: refused" in lines
    assert any(line.startswith("  c-recall-nano-3 s0: incomplete: ") for line in lines)
    assert any("d-recall-nano-4 s0: unreadable: " in line for line in lines)
    assert lines[-1] == f"to compare: archbench compare study=mix runs={tmp_path}"


def test_a_token_in_the_place_of_a_name_is_in_no_file(tmp_path: Path) -> None:
    token = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567"
    sweep = commands.compose(*WORDS, f"runs={tmp_path}")
    cell = RequestedCell.uncomposed(sweep, [f"task={token}", "backbone=decoder", "study.name=mix"])
    cell.refuse(ConfigError(f"task={token}: there is no such task"))
    paths = list(tmp_path.rglob("*"))
    assert len([path for path in paths if path.name == "result.json"]) == 1
    assert not [
        path for path in paths if token in str(path) or (path.is_file() and token in path.read_text())
    ]
    assert token not in "\n".join(summary(tmp_path / "mix"))
