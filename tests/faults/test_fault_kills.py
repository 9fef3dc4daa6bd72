"""F01: processes killed while they save; the newest whole checkpoint is found, and nothing is lost."""

from __future__ import annotations

import builtins
import io
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

from archbench.experiments.training.checkpoints import checkpoint
from tests.faults.children import fork, in_a_child, times, turn
from tests.faults.models import begun, load, save

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


@times(default=16, recorded=10**6)
def test_f01_a_kill_at_calls_to_the_file_system(tmp_path: Path, times: int, record: Any) -> None:
    """At every call of a save where faults are recorded; else at a few, evenly spread, in turn by commit."""
    number = points(tmp_path)
    assert number > 40
    found = {6: 0, 9: 0}
    step = -(-number // times)
    every = range(turn() % step, number, step)
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


@times(default=8, recorded=200)
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
