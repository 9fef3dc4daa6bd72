"""F15: one writer for each run, however often it is launched; a dead one is taken over."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from archbench.experiments.runtime import run_lock as lock_module
from archbench.experiments.runtime.errors import LockedError
from archbench.experiments.runtime.run_lock import NAME, STALE, RunLock
from archbench.experiments.training.checkpoints.checkpoint_policy import CheckpointSaver
from tests.experiments import commands
from tests.faults.children import fork, in_a_child, times


@times(default=20, recorded=50)
def test_f15_launched_many_times_at_once(tmp_path: Path, times: int, record: Any) -> None:
    folder, gate = tmp_path / "run", tmp_path / "gate"

    def writer() -> str:
        while not list(tmp_path.glob("writer-*")):  # it has the lock, and says so a moment later
            time.sleep(0.01)
        return next(tmp_path.glob("writer-*")).name.removeprefix("writer-")

    def launch() -> None:
        while not gate.exists():
            time.sleep(0.001)
        try:
            with RunLock(folder):
                (tmp_path / f"writer-{os.getpid()}").touch()
                time.sleep(2)
        except LockedError as error:
            if f"by process {writer()}" not in str(error):
                raise
            raise SystemExit(error.exit_code) from None

    pids = [fork(launch) for _ in range(times)]
    gate.touch()
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert sorted(codes) == [0] + [7] * (times - 1)
    assert len(list(tmp_path.glob("writer-*"))) == 1
    assert not folder.exists(), "the lock was not released"
    record(
        "F15", "launches of one run at the same moment", times, "1 writer, the others exit 7 with its name"
    )


@times(default=10, recorded=50)
def test_f15_a_killed_holder_is_taken_over_at_once_and_by_one(
    tmp_path: Path, times: int, record: Any
) -> None:
    folder, gate = tmp_path / "run", tmp_path / "gate"
    assert in_a_child(lambda: (RunLock(folder).__enter__(), os.kill(os.getpid(), signal.SIGKILL))) == -9
    assert (folder / NAME).exists()

    def launch() -> None:
        while not gate.exists():
            time.sleep(0.001)
        try:
            with RunLock(folder):
                time.sleep(1.5)
        except LockedError as error:
            raise SystemExit(error.exit_code) from None

    pids = [fork(launch) for _ in range(times)]
    gate.touch()
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert sorted(codes) == [0] + [7] * (times - 1)
    record("F15", "launches beside the lock of a killed process", times, "taken over at once, by one")


def hold(folder: Path, **changes: Any) -> Path:
    """A lock as another process left it."""
    folder.mkdir(parents=True, exist_ok=True)
    held = RunLock(folder).holder | {"token": "other"} | changes
    (folder / NAME).write_text(json.dumps(held))
    return folder / NAME


def test_f15_a_holder_elsewhere_is_given_five_minutes(tmp_path: Path, record: Any) -> None:
    path = hold(tmp_path / "run", host="node7", pid=4711, job="99", restarts="2")
    ago = time.time() - STALE + 30
    os.utime(path, (ago, ago))
    with pytest.raises(LockedError, match=r"process 4711 on node7, SLURM job 99 restart 2"):
        RunLock(tmp_path / "run").__enter__()
    ago = time.time() - STALE - 5
    os.utime(path, (ago, ago))
    with RunLock(tmp_path / "run") as mine:
        assert mine.held
    record("F15", "lock of another host, silent for 4.5 and for 5.1 minutes", 2, "exit 7; taken over")


def test_a_number_of_a_process_that_came_again_is_another_process(tmp_path: Path) -> None:
    hold(tmp_path / "run", started="1")
    with RunLock(tmp_path / "run") as mine:
        assert mine.held


def test_a_lock_that_could_not_be_written_is_held_until_it_is_old(tmp_path: Path) -> None:
    path = hold(tmp_path / "run")
    path.write_text("")
    with pytest.raises(LockedError, match="beginning this run"):
        RunLock(tmp_path / "run").__enter__()
    ago = time.time() - STALE - 5
    os.utime(path, (ago, ago))
    with RunLock(tmp_path / "run") as mine:
        assert mine.held


def test_the_holder_shows_that_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "HEARTBEAT", 0.02)
    with RunLock(tmp_path / "run"):
        path = tmp_path / "run" / NAME
        os.utime(path, (0, 0))
        until = time.monotonic() + 10
        while path.stat().st_mtime == 0 and time.monotonic() < until:
            time.sleep(0.01)
        assert path.stat().st_mtime > 0


def test_a_run_that_lost_its_lock_writes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (*commands.TINY, *commands.RECALL, "trainer.checkpoint_every=5", f"runs={tmp_path}")
    folder = commands.settings(*words).folder
    honest = CheckpointSaver.save

    def save_and_stand_still(self: CheckpointSaver, step: int, *more: Any, **options: Any) -> None:
        honest(self, step, *more, **options)
        if step == 10:
            hold(folder, pid=1, started="now")  # meanwhile another has taken over

    monkeypatch.setattr(CheckpointSaver, "save", save_and_stand_still)
    with pytest.raises(LockedError, match="stood still"):
        commands.train(*words)
    assert commands.newest_step(folder) == 10
    assert not (folder / "result.json").exists()
    assert (folder / NAME).exists(), "the other's lock was removed"


def test_a_lock_that_another_machine_took_over_meanwhile_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both found the lock stale: the guard of the file system is one of each machine (``localflock``)."""
    path = hold(tmp_path / "run", pid=1, started="gone")

    def overtaken(self: RunLock, holder: Any) -> bool:
        hold(tmp_path / "run", token="theirs", host="node7", pid=4711)
        return True

    monkeypatch.setattr(RunLock, "_stale", overtaken)
    with pytest.raises(LockedError, match="process 4711 on node7"):
        RunLock(tmp_path / "run").__enter__()
    assert json.loads(path.read_text())["token"] == "theirs"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"token": 1}'])
def test_a_lock_that_was_removed_or_damaged_is_lost(tmp_path: Path, content: str | None) -> None:
    with RunLock(tmp_path / "run") as lock:
        lock.check()
        lock.path.unlink() if content is None else lock.path.write_text(content)
        with pytest.raises(LockedError, match="was removed while" if content is None else "stood still"):
            lock.check()


def test_f15_a_locked_cell_is_said_and_the_others_go_on(tmp_path: Path, record: Any) -> None:
    words = (*commands.TINY, *commands.RECALL, f"runs={tmp_path}")
    locked, free = (commands.settings(*words, f"seed={seed}").folder for seed in (0, 1))
    with RunLock(locked):
        ended = commands.run("train", "-m", "seed=0,1", *words)
    assert ended.returncode == 7, ended.stderr
    lines = ended.stderr.splitlines()
    assert f"this run is being written by process {os.getpid()}" in lines[0]
    assert "seed=0" in lines[0]
    assert lines[-1].startswith("error: at least one run failed")
    assert "Traceback" not in ended.stderr
    assert not locked.exists()
    assert commands.result(free)["status"] == "complete"
    assert not (free / NAME).exists()
    record("F15", "sweep with one cell locked", 1, "cell named, exit 7, the other trained")


@pytest.mark.parametrize(
    ("answer", "taken"),
    [("7 RUNNING", False), ("7 PENDING", True), ("8 RUNNING", True), ("", True), ("exit 1", False),
     ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", True)],
)  # fmt: skip
def test_f15_a_holder_elsewhere_counts_as_gone_when_its_job_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Any, answer: str, taken: bool
) -> None:
    folder, programs = tmp_path / "run", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    holder = {"token": "other", "host": "elsewhere", "pid": 1, "started": "1", "job": "7", "restarts": None}
    (folder / NAME).write_text(json.dumps(holder))
    (programs / "squeue").write_text("#!/bin/sh\n" + (answer if "exit" in answer else f"echo '{answer}'\n"))
    (programs / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if taken:
        with RunLock(folder) as lock:
            assert lock.held
        record("F15", "a holder on another node whose SLURM job has ended (stub squeue)", 1, "taken over")
    else:
        with pytest.raises(LockedError, match="elsewhere, SLURM job 7"), RunLock(folder):
            pass


def test_f15_a_requeued_job_takes_over_its_own_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    holder = {"token": "other", "host": "elsewhere", "pid": 1, "started": "1", "job": "7", "restarts": None}
    (folder / NAME).write_text(json.dumps(holder))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(LockedError), RunLock(folder):  # another process of the same job
        pass
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with RunLock(folder) as lock:
        assert lock.held
