"""F37: what another process changes in the folder of a run, or in its data, before the result is written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from archbench.experiments.check import check_study
from archbench.experiments.run import run as run_module
from archbench.experiments.runtime.errors import CheckpointError, DataError, LockedError, RunError
from archbench.experiments.runtime.run_lock import NAME
from archbench.experiments.tracking.run_files import checksum
from tests.experiments import commands
from tests.faults.test_fault_lock import hold

WORDS = (*commands.TINY, *commands.RECALL, "trainer.checkpoint_every=10", "trainer.log_every=5")


@pytest.fixture
def at_the_end(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Path], object]], None]:
    """Function that has a change made after the evaluation, before the result is written."""

    def inject(change: Callable[[Path], object]) -> None:
        monkeypatch.setattr(run_module, "sample", lambda trainer: change(trainer.folder.root) and None)

    return inject


def rewrite(name: str, content: str | None) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        path = folder / name
        path.unlink() if content is None else path.write_text(content)

    return change


@pytest.mark.parametrize("content", [None, "", "][", "seed: 7\n"])
@pytest.mark.parametrize("name", ["config.yaml", "provenance.json", "model.json"])
def test_files_that_were_changed_meanwhile_are_written_again(
    tmp_path: Path, at_the_end: Any, capsys: pytest.CaptureFixture[str], name: str, content: str | None
) -> None:
    at_the_end(rewrite(name, content))
    folder = commands.train(*WORDS, f"runs={tmp_path}")
    assert f"{name} was changed or removed while the run trained" in capsys.readouterr().out
    assert commands.result(folder)["status"] == "complete"
    assert check_study(tmp_path / "single").records == []


@pytest.mark.parametrize("keep", [0, 1, 50, -1])
def test_rows_that_were_changed_meanwhile_make_the_result_inexact(
    tmp_path: Path, at_the_end: Any, keep: int
) -> None:
    def truncate(folder: Path) -> None:
        path = folder / "metrics.jsonl"
        path.write_bytes(path.read_bytes()[:keep])

    at_the_end(truncate)
    folder = commands.train(*WORDS, f"runs={tmp_path}")
    resume = commands.result(folder)["resume"]
    assert (resume["exact"], list(resume["changed"])) == (False, ["metrics.jsonl"])
    assert any("metrics.jsonl" in line for line in check_study(tmp_path / "single").records)


def replaced(folder: Path) -> None:
    shutil.copytree(folder, folder.with_name("copy"))
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)


def change_weights(folder: Path, change: Callable[[Path], object]) -> None:
    path = max(folder.glob("checkpoints/step-*")) / "model.safetensors"
    data = path.read_bytes()
    path.unlink()
    change(path)
    if not path.exists():
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def make_folder(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()


CHANGED, EMPTY = "has changed since it was written", "has 0 bytes instead of"
LOST: dict[str, tuple[Callable[[Path], object], type[RunError], str]] = {
    "taken over": (lambda folder: hold(folder, pid=1, started="now"), LockedError, "stood still"),
    "of another machine": (lambda folder: hold(folder, host="node7"), LockedError, "on node7"),
    "removed": (rewrite(NAME, None), LockedError, "was removed while"),
    "damaged": (rewrite(NAME, "{"), LockedError, "stood still"),
    "folder removed": (shutil.rmtree, LockedError, "was removed while"),
    "folder renamed": (
        lambda folder: folder.rename(folder.with_name("s9")),
        LockedError,
        "was removed while",
    ),
    "folder replaced": (replaced, LockedError, "replaced by a copy"),
    "checkpoints": (lambda folder: shutil.rmtree(folder / "checkpoints"), CheckpointError, "was removed"),
    "weights": (lambda folder: change_weights(folder, lambda path: None), CheckpointError, CHANGED),
    "weights, a pipe": (lambda folder: change_weights(folder, os.mkfifo), CheckpointError, EMPTY),
    "weights, endless": (
        lambda folder: change_weights(folder, lambda path: path.symlink_to("/dev/zero")),
        CheckpointError,
        EMPTY,
    ),
    "config.yaml a folder": (lambda folder: make_folder(folder, "config.yaml"), CheckpointError, "written"),
    "result.json a folder": (lambda folder: make_folder(folder, "result.json"), CheckpointError, "written"),
}


@pytest.mark.parametrize("lost", LOST)
def test_a_process_that_lost_its_run_writes_no_complete_result(
    tmp_path: Path, at_the_end: Any, lost: str, record: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    change, error, message = LOST[lost]
    at_the_end(change)
    words = (*WORDS, f"runs={tmp_path}")
    with pytest.raises(error, match=message):
        commands.train(*words)
    assert "complete: " not in capsys.readouterr().out
    path = commands.settings(*words).folder / "result.json"
    assert json.loads(path.read_text())["status"] != "complete" if path.is_file() else True
    assert error is not LockedError or not path.exists()
    record("F15", f"lock or folder lost after the evaluation: {lost}", 1, "refused by name, no result")


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_tokens_that_were_overwritten_while_mapped_end_the_run(
    tmp_path: Path, at_the_end: Any, split: str
) -> None:
    cache = tmp_path / "cache"
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {n} of a text that is long enough\n\n" for n in range(3000)))
    words = (*commands.TINY, *commands.SHORT_TEXT, "task.source=files", f"task.paths=[{text}]")
    words = (*words, f"task.cache_dir={cache}", f"runs={tmp_path / 'runs'}")

    def overwrite(folder: Path) -> None:
        (path,) = cache.glob(f"*/{split}.bin")
        before = path.stat()
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            file.write(bytes(8))
            os.fsync(file.fileno())
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # hides it from a look at the time

    at_the_end(overwrite)
    with pytest.raises(DataError, match=rf"{split}\.bin: .* have changed"):
        commands.train(*words)


CONTRADICTIONS: dict[str, Callable[[dict[str, Any]], object]] = {
    "validation": lambda tree: tree["validation"][0].update(value=tree["validation"][0]["value"] * 0.99),
    "tokens": lambda tree: tree["training"].update(tokens=tree["training"]["tokens"] + 1),
    "flops": lambda tree: tree["training"].update(flops=tree["training"]["flops"] / 2),
    "seconds": lambda tree: tree["training"].update(seconds=tree["training"]["seconds"] * 0.9),
    "device_seconds": lambda tree: tree["training"].update(device_seconds=1e-3),
}


@pytest.mark.parametrize("number", CONTRADICTIONS)
def test_numbers_that_the_curve_contradicts_fail_the_check(
    trained: Path, tmp_path: Path, number: str
) -> None:
    study = tmp_path / "single"
    shutil.copytree(trained.parents[1], study)
    assert check_study(study).records == []
    (path,) = study.glob("*/*/result.json")
    tree = json.loads(path.read_text())
    CONTRADICTIONS[number](tree)
    path.write_text(json.dumps({**tree, "checksum": checksum(tree)}))
    line = check_study(study).records[0]  # values that follow from it are named too
    assert number in line
    assert "in metrics.jsonl" in line


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return commands.train(*WORDS, f"runs={tmp_path_factory.mktemp('trained')}")
