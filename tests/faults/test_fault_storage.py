"""F06 and F07: no room to save, and old checkpoints on their way out; there is always a whole one."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import errno
import os
import resource
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from archbench.experiments.runtime.errors import CheckpointError
from archbench.experiments.training.checkpoints import checkpoint
from archbench.experiments.training.checkpoints import checkpoint_policy as saving
from archbench.experiments.training.checkpoints.checkpoint_policy import MOST_FAILURES, CheckpointSaver
from tests.experiments import commands
from tests.faults.children import in_a_child, times
from tests.faults.models import at_step, begun, load, save


def small_disk(folder: Path, size: str) -> None:
    """Mounts a file system of its own on ``folder``, which only this process sees. Raises PermissionError."""
    libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    private, new_mounts = (1 << 18) | (1 << 14), 0x00020000
    folder.mkdir(exist_ok=True)
    for code in (
        libc.unshare(new_mounts),
        libc.mount(b"none", b"/", None, private, None),
        libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, f"size={size}".encode()),
    ):
        if code:
            raise PermissionError(os.strerror(ctypes.get_errno()))


def saver(folder: Path, said: list[str]) -> CheckpointSaver:
    return CheckpointSaver(folder, 2, said.append)


def try_save(saver: CheckpointSaver, step: int, **more: bool) -> None:
    saver.save(step, *at_step(step), {"train_state": {"step": step}}, **more)


def test_f06_a_full_disk_costs_no_older_checkpoint(tmp_path: Path, record: Any) -> None:
    def work() -> None:
        try:
            small_disk(tmp_path / "disk", "128k")
        except OSError:
            os._exit(42)
        folder, said = begun(tmp_path / "disk" / "run"), []
        filler = tmp_path / "disk" / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1024))
        keeper = saver(folder, said)
        try_save(keeper, 9)
        try_save(keeper, 12)
        assert len(said) == 2
        assert "No space left" in said[0], said
        assert sorted(p.name for p in folder.iterdir()) == ["step-00000003", "step-00000006"]
        filler.unlink()
        try_save(keeper, 15)
        assert keeper.failures == 0
        assert load(folder) == 15
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1024))
        for step in (18, 21):
            try_save(keeper, step)
        with pytest.raises(CheckpointError, match=r"3 times in a row.*make room") as gave_up:
            try_save(keeper, 24)
        assert gave_up.value.exit_code == 6
        assert load(folder) == 15

    code = in_a_child(work)
    if code == 42:
        pytest.skip("mounting a small file system needs more rights than there are")
    assert code == 0
    record(
        "F06",
        "disk full while saving (tmpfs of 128 KiB)",
        5,
        "older checkpoints intact, given up at the third",
    )


def test_f06_a_limit_on_file_sizes_costs_no_older_checkpoint(tmp_path: Path, record: Any) -> None:
    """The same without rights to mount: the system refuses to let a file grow."""
    folder = begun(tmp_path / "run")

    def work() -> None:
        said: list[str] = []
        keeper = saver(folder, said)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        for step in (9, 12)[: MOST_FAILURES - 1]:
            try_save(keeper, step)
        assert all("cannot be written" in line for line in said)
        with pytest.raises(CheckpointError, match="in a row"):
            try_save(keeper, 15)
        with pytest.raises(CheckpointError):
            try_save(saver(folder, said), 18, last=True)

    assert in_a_child(work) == 0
    assert sorted(p.name for p in folder.iterdir()) == ["step-00000003", "step-00000006"]
    assert load(folder) == 6
    record("F06", "system refuses to let files grow", 4, "older checkpoints intact, given up at the third")


def test_f06_room_is_made_where_there_is_something_to_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, said = begun(tmp_path / "run"), []
    save(folder, 9, keep=5)
    (folder / "broken-step-00000001-abcd").mkdir()
    honest, calls = checkpoint.save_file, []

    def full_once(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        honest(*arguments)

    monkeypatch.setattr(checkpoint, "save_file", full_once)
    try_save(CheckpointSaver(folder, 5, said.append), 12)
    assert not said
    names = sorted(p.name for p in folder.iterdir())
    assert names == ["step-00000006", "step-00000009", "step-00000012"]


def test_f06_a_disk_too_small_is_said_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Any
) -> None:
    words = (*commands.TINY, *commands.RECALL, f"runs={tmp_path}")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(saving.shutil, "disk_usage", lambda path: usage._replace(free=500_000))
    with pytest.raises(CheckpointError, match=r"MiB are free, and 3 checkpoints of .* runs=") as said:
        commands.train(*words)
    assert said.value.exit_code == 6
    folder = commands.settings(*words).folder
    assert not (folder / "metrics.jsonl").exists(), "training had begun"
    monkeypatch.undo()
    commands.train(*words)
    found = commands.result(folder)
    size = sum(p.stat().st_size for p in commands.newest_checkpoint(folder).iterdir())
    assert 3 * size > 500_000, "the test's disk was large enough"
    assert found["status"] == "complete"
    record("F06", "disk too small at the start", 1, "exit code 6 before the first step")


def test_the_estimate_is_the_size(tmp_path: Path) -> None:
    save(tmp_path, 3)
    model: nn.Module = at_step(3)[0]
    written = sum(p.stat().st_size for p in (tmp_path / "step-00000003").glob("*.safetensors"))
    assert 0.7 * written < saving.checkpoint_bytes(model, averages=False) <= written


def test_f07_an_old_checkpoint_that_cannot_be_removed_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, said = begun(tmp_path), []

    def refuse(path: Any, *more: Any, **options: Any) -> None:
        if Path(path).name.startswith("step-"):
            raise PermissionError(errno.EACCES, "not yours")

    monkeypatch.setattr(checkpoint.shutil, "rmtree", refuse)
    try_save(saver(folder, said), 9)
    assert len(said) == 1
    assert "cannot be removed" in said[0]
    monkeypatch.undo()
    assert load(folder) == 9
    save(folder, 12)
    assert sorted(p.name for p in folder.iterdir()) == ["step-00000009", "step-00000012"]


def test_f07_what_is_half_removed_or_damaged_does_not_count(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    (folder / "step-00000006" / "model.safetensors").write_bytes(b"")
    save(folder, 9)
    (folder / "step-00000004").mkdir()  # its manifest went first
    save(folder, 12, keep=3)
    names = sorted(p.name for p in folder.glob("step-*"))
    assert names == ["step-00000003", "step-00000009", "step-00000012"]


@times(default=30, recorded=500)
def test_f07_there_is_always_a_whole_checkpoint(tmp_path: Path, times: int, record: Any) -> None:
    """Seen by a watcher that looks every millisecond while checkpoints come and go."""
    folder = begun(tmp_path)
    done, looks, fewest = threading.Event(), 0, 99

    def watch() -> None:
        nonlocal looks, fewest
        while not done.is_set():
            there = set(folder.glob("step-*"))
            whole = [p for p in there if checkpoint.broken(p, hashes=False) is None]
            # One listed, then replaced by a newer one before it was looked into, says nothing.
            if there == set(folder.glob("step-*")):
                fewest, looks = min(fewest, len(whole)), looks + 1
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for step in range(9, 9 + times):
        save(folder, step, keep=1)
    done.set()
    watcher.join()
    assert looks > times / 4
    assert fewest >= 1
    record("F07", "saves under a watcher, keeping one", times, f"never fewer than {fewest} whole")
