"""The run folder: whole files, plain JSON, no secrets."""

import json
import math
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from archbench.experiments.runtime.atomic_io import plain, write_json, write_text
from archbench.experiments.runtime.errors import CheckpointError
from archbench.experiments.runtime.run_status import FINAL
from archbench.experiments.tracking import provenance as provenance_module
from archbench.experiments.tracking.provenance import (
    PACKAGES,
    changed_code,
    code_hash,
    code_hashes,
    current_commit,
    provenance,
)
from archbench.experiments.tracking.run_files import DataSource, GitState, Provenance, Resume, damaged_files
from archbench.experiments.tracking.run_folder import RunFolder, StudyFolders, misplacement
from tests import results
from tests.experiments import commands
from tests.results import metric_row, named, write_result

DATA = DataSource(task="text", fingerprint=None)


def recorded() -> Provenance:
    return provenance("k", torch.device("cpu"), "fp32", DATA, {})


def row(step: int) -> dict[str, Any]:
    return results.row("train", step, loss=1 / step)


def test_rows_come_back_as_they_were_logged(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        folder.log(metric_row("train", step, loss=1 / step))
    assert commands.rows(tmp_path) == [row(1), row(2), row(3)]


def test_numbers_json_has_no_words_for_become_strings(tmp_path: Path) -> None:
    tree = {"a": math.nan, "b": [math.inf, -math.inf, 1.5], 3: {"c": (True, None, "x")}}
    assert plain(tree) == {"a": "nan", "b": ["inf", "-inf", 1.5], "3": {"c": [True, None, "x"]}}
    write_json(tmp_path / "x.json", tree)
    assert json.loads((tmp_path / "x.json").read_text())["a"] == "nan"


@pytest.mark.parametrize("step", range(5))
def test_rewinding_drops_later_rows(tmp_path: Path, step: int) -> None:
    folder = RunFolder(tmp_path)
    folder.rewind(step)  # nothing there yet: nothing to drop
    assert not folder.metrics.exists()
    for number in (1, 2, 2, 3):
        folder.log(metric_row("train", number))
    with folder.metrics.open("a") as file:
        file.write('{"kind": "train", "step": 1, "loss"')
    folder.rewind(step)
    assert [r["step"] for r in commands.rows(tmp_path)] == [n for n in (1, 2, 2, 3) if n <= step]
    folder.log(metric_row("train", 9, loss=1 / 9))
    assert commands.rows(tmp_path)[-1] == row(9)


@pytest.mark.parametrize("status", ["complete", "diverged", "oom", "failed", "preempted"])
def test_a_status_says_whether_a_run_is_finished(tmp_path: Path, status: str) -> None:
    folder = RunFolder(tmp_path)
    assert folder.result() is None
    assert not folder.has_final_status
    write_result(tmp_path, {"status": status})
    found = folder.result()
    assert found is not None
    assert found.status == status
    assert folder.has_final_status == (status in FINAL)
    folder.open({"seed": 0}, recorded())
    assert folder.result() is None, "a run that has begun again has no result"


def test_a_complete_result_with_fewer_steps_than_planned_is_damaged(tmp_path: Path) -> None:
    write_result(tmp_path, {"status": "complete", "planned": {"steps": 50}, "training": {"steps": 40}})
    with pytest.raises(
        CheckpointError, match="10 planned steps are missing: remove it, and the same command"
    ):
        _ = RunFolder(tmp_path).has_final_status


def test_a_run_that_ended_before_its_first_row_lost_no_file(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.open({"seed": 0}, recorded())
    folder.metrics_record()  # as each checkpoint has it
    folder.write_result(named(tmp_path, {"status": "diverged"}))
    assert not folder.metrics.exists()
    assert folder.has_final_status
    found = folder.result()
    assert found is not None
    assert damaged_files(found, {"metrics.jsonl": None, "config.yaml": None}) == ["config.yaml"]


def test_a_file_is_replaced_in_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    write_text(path, "old")

    def crash(descriptor: int) -> None:
        raise OSError("power is gone")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(OSError, match="power"):
        write_text(path, "new")
    assert path.read_text() == "old"
    monkeypatch.undo()
    write_text(path, "new")
    assert path.read_text() == "new"


@pytest.mark.parametrize(("direction", "loss"), [("lower", 0.5), ("higher", -0.5)])
def test_the_loss_is_the_last_score_on_validation(direction: str, loss: float, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.score_to_minimize() == math.inf  # nothing has ended here
    for step, score in ((1, 0.7), (2, 0.5)):
        folder.log(metric_row("validation", step, score=score, other=9.0))
    folder.log(metric_row("train", 2, loss=3.0))
    metric = {"name": "score", "split": "test", "direction": direction, "value": 8.0}
    write_result(tmp_path, {"status": "complete", "metrics": [metric]})
    assert folder.score_to_minimize() == loss
    folder.metrics.rename(tmp_path / "moved.jsonl")
    assert folder.score_to_minimize() == math.inf
    write_result(tmp_path, {"status": "diverged", "metrics": []})
    assert folder.score_to_minimize() == math.inf


def test_no_secret_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "canary" + "0123456789abcdef" * 2
    monkeypatch.setattr("sys.argv", ["train", f"task.api_key={secret}", "seed=1"])
    config = {"hub": {"token": secret, "url": f"https://me:{secret}@host/x"}, "budget": {"tokens": 5}}
    RunFolder(tmp_path).open(config, recorded())
    assert not [path for path in tmp_path.iterdir() if secret in path.read_text()]
    assert OmegaConf.load(tmp_path / "config.yaml").budget.tokens == 5
    assert json.loads((tmp_path / "provenance.json").read_text())["command"].endswith(" seed=1")


def test_provenance_names_code_versions_device_and_kernels() -> None:
    found = provenance("k", torch.device("cpu"), "bf16", DATA, {"scan": "torch"})
    # The version of the package may lack the +cu132 of the module.
    assert found.versions["torch"] in (torch.__version__, torch.__version__.partition("+")[0])
    assert set(PACKAGES) < set(found.versions)
    assert found.device.name == "cpu"
    assert found.device.processor
    assert found.device.precision == "bf16"
    assert found.device.threads == torch.get_num_threads()
    assert (found.key, found.data, found.kernels) == ("k", DATA, {"scan": "torch"})
    assert found.resume == Resume(sittings=1, exact=True, changed={})


def test_changed_code_is_named_and_a_damaged_record_names_none(tmp_path: Path) -> None:
    folder, path = RunFolder(tmp_path), tmp_path / "provenance.json"
    assert changed_code(folder, []) == []  # the run has not begun
    folder.open({}, recorded())
    assert changed_code(folder, []) == []
    record = json.loads(path.read_text())
    record["code"]["archbench.architectures"] = "0" * 16
    path.write_text(json.dumps(record))
    assert changed_code(folder, []) == ["archbench.architectures"]
    path.write_text(path.read_text()[:-20])
    assert changed_code(folder, []) == []


def test_the_commit_is_that_of_the_code_and_not_of_a_repository_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", tmp_path, *identity, *words], check=True, capture_output=True)

    git("init")
    git("commit", "--allow-empty", "-m", "another project")
    current_commit.cache_clear()
    own = current_commit()
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))  # as in a hook
    current_commit.cache_clear()
    assert current_commit() == own
    monkeypatch.delenv("GIT_DIR")
    installed = tmp_path / ".venv" / "provenance.py"
    installed.parent.mkdir()
    installed.touch()
    monkeypatch.setattr(provenance_module, "__file__", str(installed))
    current_commit.cache_clear()
    assert current_commit() == (None, None)
    current_commit.cache_clear()


def test_provenance_withoutcurrent_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    current_commit.cache_clear()
    found = recorded().git
    current_commit.cache_clear()
    assert found == GitState(commit=None, dirty=None, code=code_hash(code_hashes()))
    assert len(found.code) == 16


COPIES = ("s05", " s1", "s1 (copy)", "s1.bak", "S1", "s", "s-1", "s1_0", "s٣", "seed1")


def test_only_the_names_that_the_harness_gives_are_runs(tmp_path: Path) -> None:
    for name in ("s0", "s1", "s10", "s2", *COPIES, ".fetch-abc"):
        (tmp_path / "mamba-text-nano-ab12cd34" / name).mkdir(parents=True)
    (tmp_path / "mamba-text-nano-ab12cd34" / "notes.txt").touch()
    (tmp_path / "backup" / "s0").mkdir(parents=True)
    (tmp_path / "analysis" / "figures").mkdir(parents=True)
    (tmp_path / ".refused").mkdir()
    found = StudyFolders.of(tmp_path)
    assert found.runs == [f"mamba-text-nano-ab12cd34/{name}" for name in ("s0", "s1", "s10", "s2")]
    assert sorted(found.others) == sorted(
        ["backup", *(f"mamba-text-nano-ab12cd34/{name}" for name in COPIES)]
    )
    assert StudyFolders.of(tmp_path / "nothing") == StudyFolders(runs=[], others=[])


def test_a_link_is_known_by_its_name_and_content(tmp_path: Path) -> None:
    cell = tmp_path / "mamba-text-nano-ab12cd34"
    (cell / "s0").mkdir(parents=True)
    (cell / "s1").symlink_to("s0")
    (cell / "s2").symlink_to("s2")  # a loop
    (cell / "link").symlink_to("s0")
    assert StudyFolders.of(tmp_path).runs == [f"{cell.name}/s{seed}" for seed in range(3)]
    assert StudyFolders.of(tmp_path).others == [f"{cell.name}/link"]
    write_result(cell / "s0", {"status": "complete"})
    assert RunFolder(cell / "s0").result() is not None
    with pytest.raises(CheckpointError, match=f"s1: it holds the run {cell.name}-s0, not {cell.name}-s1"):
        RunFolder(cell / "s1").result()
    assert RunFolder(cell / "s1").result(anywhere=True) is not None


def test_the_path_and_the_content_are_compared_by_cell_digest_and_seed() -> None:
    key = "mamba-text-nano-ab12cd34-s0"
    assert misplacement(Path("any/study/mamba-text-nano-ab12cd34/s0"), key) is None
    for path in ("mamba-text-nano-ab12cd34/s1", "mamba-text-nano-ab12cd35/s0", "moe-text-nano-ab12cd34/s0"):
        assert "it holds the run mamba-text-nano-ab12cd34-s0" in str(misplacement(Path(path), key))
