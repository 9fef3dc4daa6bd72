"""F01 to F07 and F32: whatever happens to a checkpoint, the newest whole one is found and nothing is lost."""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import ctypes.util
import errno
import io
import json
import os
import random
import resource
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import commands
import pytest
from children import fork, in_a_child, times
from models import at_step, load, save
from torch import nn

from experiments import checkpoint, saving
from experiments.errors import CheckpointError
from experiments.saving import MOST_FAILURES, Saver

CALLS = ("open", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "link", "scandir", "stat", "close")


def die_at(point: int | None) -> list[str]:
    """From now on, counts every call to the file system, and ends the process at number ``point``.

    Writing a file of tensors is three points: before it, with half of it written, and after it.
    """
    seen: list[str] = []

    def reach(name: str) -> None:
        seen.append(name)
        if len(seen) - 1 == point:
            os._exit(9)

    def counted(name: str, work: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            reach(name)
            return work(*arguments, **options)

        return call

    for name in CALLS:
        setattr(os, name, counted(name, getattr(os, name)))
    io.open = builtins.open = counted("open", builtins.open)
    save_file = checkpoint.save_file

    def save_tensors(tensors: Any, path: Path) -> None:
        reach("before tensors")
        save_file(tensors, path)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        reach("half of the tensors")
        path.write_bytes(whole)
        reach("after tensors")

    checkpoint.save_file = save_tensors
    return seen


def begun(folder: Path) -> Path:
    """Checkpoints of steps 3 and 6, as a run that keeps two has."""
    for step in (3, 6):
        save(folder, step)
    return folder


def points(tmp_path: Path) -> int:
    """How many calls to the file system a save makes, the removal of the oldest checkpoint included."""
    counted = tmp_path / "points"

    def work() -> None:
        folder = begun(tmp_path / "count")
        seen = die_at(None)
        save(folder, 9)
        number = len(seen)
        counted.write_text(str(number))

    assert in_a_child(work) == 0
    return int(counted.read_text())


@times(default=8, full=10**6)
def test_f01_a_kill_at_calls_to_the_file_system(tmp_path: Path, times: int, record: Any) -> None:
    """At every call of a save in the full run; at a few, evenly spread, in the default one."""
    number = points(tmp_path)
    assert number > 40
    found = {6: 0, 9: 0}
    every = range(0, number, -(-number // times))
    for point in every:
        folder = begun(tmp_path / f"kill{point}")

        def work(folder: Path = folder, point: int = point) -> None:
            die_at(point)
            save(folder, 9)

        assert in_a_child(work) == 9, point
        step = load(folder)
        assert step in (6, 9), f"killed at call {point}: step {step}"
        found[step] += 1
        save(folder, 12)
        assert load(folder) == 12
        assert not list(folder.glob(".tmp-*"))
        shutil.rmtree(folder)
    assert min(found.values()) >= 1, found
    record(
        "F01",
        "process ended at a call to the file system while saving",
        len(every),
        "newest whole step resumed",
    )


@times(default=8, full=200)
def test_f01_a_sigkill_at_random_moments(tmp_path: Path, times: int, record: Any) -> None:
    chance = random.Random(1)
    for trial in range(times):
        folder = begun(tmp_path / str(trial))

        def work(folder: Path = folder) -> None:
            for step in range(9, 10_000, 3):
                save(folder, step)

        pid = fork(work)
        time.sleep(chance.uniform(0.005, 0.06))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        names = sorted(p.name for p in folder.glob("step-*") if (p / "MANIFEST.json").exists())
        step = load(folder)
        assert step is not None
        assert f"step-{step:08d}" == names[-1], "not the newest that was committed"
        shutil.rmtree(folder)
    record("F01", "SIGKILL at a random moment of saving", times, "newest whole step resumed")


def test_f02_everything_reaches_the_disk_before_the_name_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync, rename = os.fsync, os.rename

    def watch(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def commit(source: Any, target: Any) -> None:
        if Path(target).name.startswith("step-"):
            assert {*checkpoint.FILES, "MANIFEST.json", Path(source).name} <= set(synced)
            synced.append("renamed")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", watch)
    monkeypatch.setattr(os, "rename", commit)
    save(tmp_path, 3)
    assert synced[-2:] == ["renamed", tmp_path.name], "the folder was not synced after the rename"


@times(default=10, full=50)
def test_f02_bytes_that_never_reached_the_disk(tmp_path: Path, times: int, record: Any) -> None:
    chance = random.Random(2)
    for trial in range(times):
        folder = begun(tmp_path / str(trial))
        path = folder / "step-00000006" / chance.choice([*checkpoint.FILES, "MANIFEST.json"])
        data = path.read_bytes()
        kept = chance.randrange(len(data))
        lost = chance.choice([b"", bytes(len(data) - kept)])  # cut off, or a hole of zeros
        path.write_bytes(data[:kept] + lost)
        assert load(folder) == 3, path
        assert (next(folder.glob("broken-step-00000006-*")) / "REASON.txt").read_text().strip()
    record("F02", "tail of a committed file lost or zero", times, "set aside, previous step resumed")


@times(default=40, full=1000)
def test_f03_one_flipped_byte(tmp_path: Path, times: int, record: Any) -> None:
    chance = random.Random(3)
    folder = begun(tmp_path / "run")
    for _ in range(times):
        name = chance.choice(checkpoint.FILES)
        path = folder / "step-00000006" / name
        data = bytearray(path.read_bytes())
        place, bit = chance.randrange(len(data)), 1 << chance.randrange(8)
        data[place] ^= bit
        path.write_bytes(data)
        assert load(folder) == 3
        (aside,) = folder.glob("broken-*")
        assert name in (aside / "REASON.txt").read_text()
        data[place] ^= bit
        (aside / name).write_bytes(data)
        (aside / "REASON.txt").unlink()
        aside.rename(folder / "step-00000006")
    assert load(folder) == 6
    record("F03", "one bit flipped in a file of the newest checkpoint", times, "found, file named, fell back")


def test_f03_a_flipped_byte_of_the_manifest_never_loads_anything_else(tmp_path: Path) -> None:
    whole = begun(tmp_path / "run")
    size = (whole / "step-00000006" / "MANIFEST.json").stat().st_size
    for place in range(0, size, 17):
        folder = tmp_path / str(place)
        shutil.copytree(whole, folder)
        path = folder / "step-00000006" / "MANIFEST.json"
        data = bytearray(path.read_bytes())
        data[place] ^= 4
        path.write_bytes(data)
        assert load(folder) in (3, 6)  # ``load`` compares every tensor


def test_f05_nothing_whole_is_no_fresh_start(tmp_path: Path, record: Any) -> None:
    folder = begun(tmp_path)
    for step, name in ((3, "optimizer.safetensors"), (6, "model.safetensors")):
        (folder / f"step-{step:08d}" / name).write_bytes(b"")
    for _ in range(2):  # the second launch as the first
        with pytest.raises(
            CheckpointError, match=r"no checkpoint is whole .*step-00000006.*has 0 bytes"
        ) as said:
            load(folder)
        assert "step-00000003" in str(said.value)
        assert said.value.exit_code == 6
    record("F05", "every checkpoint broken", 2, "exit code 6 with the reason of each, no restart at step 0")


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


def saver(folder: Path, said: list[str]) -> Saver:
    return Saver(folder, 2, said.append)


def try_save(saver: Saver, step: int, **more: bool) -> None:
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
    try_save(Saver(folder, 5, said.append), 12)
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
    checkpoint.save(folder, 9, *at_step(9), {"train_state": {"step": 9}}, 2, said.append)
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


@times(default=30, full=500)
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


def test_f32_a_checkpoint_of_the_first_version_loads(tmp_path: Path, record: Any) -> None:
    """Before anomalies were counted, the state of training had no such fields."""
    words = (*commands.TINY, *commands.RECALL, "trainer.checkpoint_every=10", f"runs={tmp_path}")
    folder = commands.train(*words)
    expected = commands.result(folder)["metrics"]
    shutil.rmtree(commands.newest_checkpoint(folder))
    newest = commands.newest_checkpoint(folder)
    state = json.loads((newest / "state.json").read_text())
    for name in ("anomalies", "window_skipped"):
        del state["train_state"][name]
    rewrite_state(newest, state)
    (folder / "result.json").unlink()
    commands.train(*words)
    assert commands.result(folder)["metrics"] == expected

    (folder / "result.json").unlink()
    newest = commands.newest_checkpoint(folder)
    state = json.loads((newest / "state.json").read_text())
    state["train_state"]["invented_later"] = 1
    rewrite_state(newest, state)
    with pytest.raises(CheckpointError, match="invented_later"):
        commands.train(*words)
    assert newest.exists()
    record("F32", "state of an older and of a later version", 2, "older one loads, later one refused by name")


def rewrite_state(path: Path, state: dict[str, Any]) -> None:
    """Another state in a checkpoint, with a manifest that says so."""
    (path / "state.json").write_text(json.dumps(state))
    manifest = json.loads((path / "MANIFEST.json").read_text())
    size, digest = (path / "state.json").stat().st_size, checkpoint._hash(path / "state.json")
    (path / "MANIFEST.json").write_text(
        json.dumps(manifest | {"state.json": {"bytes": size, "sha256": digest}})
    )
