"""One writer for each run folder: a lock file that names its holder and shows that it lives.

The file is created with O_EXCL. It is stale where its process is gone from this
machine or its SLURM job has ended, or if it was not touched for five minutes: then it is taken over.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from archbench.experiments.runtime.errors import CheckpointError, LockedError
from archbench.experiments.runtime.preemption import deferred
from archbench.experiments.runtime.process_identity import is_alive, is_local, read_process, this_process

NAME = "lock.json"
HEARTBEAT = 30.0
"""Seconds between two touches."""
STALE = 300.0
"""Seconds without one after which a holder on another machine counts as gone."""
ALIVE = ("RUNNING", "COMPLETING", "SUSPENDED")
"""States of a SLURM job whose processes may still write."""


class RunLock:
    """Lock to hold while a run is written; ``with RunLock(folder):``.

    Raises on entry:
        LockedError: another process holds it; the message names it.
        CheckpointError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / NAME
        self.holder = {"token": uuid.uuid4().hex, **_self()}
        self._done = threading.Event()
        self._made: list[Path] = []
        self._inode = 0
        """Of the lock file: a copy of the folder in its place has another one."""

    def __enter__(self) -> RunLock:
        try:
            self._made = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
            self.folder.mkdir(parents=True, exist_ok=True)
            with _guard(self.folder):
                if not self._make():
                    holder = _read(self.path)
                    if not self._stale(holder):
                        raise LockedError(_describe(self.folder, holder))
                    self._remove(holder)
                    if not self._make():
                        raise LockedError(_describe(self.folder, _read(self.path)))
        except OSError as error:
            raise CheckpointError(f"{self.folder}: the run folder cannot be written: {error}") from error
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with deferred():  # a signal that raised here would leave the lock
            self._done.set()
            self._thread.join()
            with contextlib.suppress(OSError):
                if self.held:
                    self.path.unlink()
                for empty in self._made:
                    empty.rmdir()  # a rejected run leaves no folders

    @property
    def held(self) -> bool:
        """False if another process has taken it over, which happens if this one was suspended for long."""
        holder = _read(self.path)
        return holder is not None and holder["token"] == self.holder["token"] and not self._is_copy

    @property
    def _is_copy(self) -> bool:
        try:
            return self.path.stat().st_ino != self._inode
        except OSError:
            return True

    def check(self) -> None:
        """Raises LockedError if the lock was lost, so that further writes are not allowed."""
        if self.held:
            return
        if not self.path.exists():
            raise LockedError(
                f"{self.path}: was removed while this process held it, so that another may have written this "
                "run: this process stops; the same command continues from the last checkpoint"
            )
        holder = _read(self.path)
        if holder is not None and holder["token"] == self.holder["token"]:
            raise LockedError(
                f"{self.folder}: was replaced by a copy while this process wrote to it: this process stops; "
                "the same command continues from the last checkpoint"
            )
        raise LockedError(f"{_describe(self.folder, holder)}. This one stood still and stops")

    def _make(self) -> bool:
        try:
            descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "w") as file:
            file.write(json.dumps(self.holder, indent=1) + "\n")
            self._inode = os.fstat(descriptor).st_ino
        return True

    def _remove(self, stale: dict[str, Any] | None) -> None:
        """Remove a stale lock, or put back what is another's by now: the guard may be that of one machine."""
        removed = self.folder / f".{NAME}.{self.holder['token']}"
        with contextlib.suppress(FileNotFoundError):  # it was released meanwhile
            self.path.rename(removed)
            if _read(removed) != stale and not self.path.exists():
                removed.rename(self.path)
            removed.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._done.wait(HEARTBEAT):
            with contextlib.suppress(OSError):
                if self.held:
                    os.utime(self.path)

    def _stale(self, holder: dict[str, Any] | None) -> bool:
        own_holder = self.holder
        if holder is not None and is_local(holder):
            return not is_alive(holder)
        if holder is not None and holder.get("job"):
            same_job = holder["job"] == own_holder["job"]
            if (same_job and holder.get("restarts") != own_holder["restarts"]) or (
                not same_job and _ended(holder["job"])
            ):
                return True
        age = self._age()
        return self._untouched() if age < -STALE else age > STALE

    def _untouched(self) -> bool:
        """Return True if a lock dated in the future is not touched for one and a half heartbeats."""
        start = self._age() - time.monotonic()
        time.sleep(1.5 * HEARTBEAT)
        return abs(self._age() - time.monotonic() - start) < HEARTBEAT / 2

    def _age(self) -> float:
        """Seconds since the last touch, by the clock of the file system: those of two machines may differ."""
        probe = self.folder / f".{NAME}.{self.holder['token']}"
        probe.touch()
        try:
            return probe.stat().st_mtime - self.path.stat().st_mtime
        except FileNotFoundError:
            return float("inf")  # released meanwhile
        finally:
            probe.unlink()


def writer(folder: Path) -> str | None:
    """The current writer of a run, as "process 7 on host"; None if it is missing. Does not touch the lock.

    A process on another machine is alive if its last touch is recent by the local clock.
    """
    path = folder / NAME
    holder = _read(path)
    if holder is None:
        return None
    if is_local(holder):
        alive = is_alive(holder)
    else:
        try:
            alive = abs(time.time() - path.stat().st_mtime) < STALE
        except OSError:
            return None
    return f"process {holder['pid']} on {holder['host']}" if alive else None


@contextmanager
def _guard(folder: Path) -> Iterator[None]:
    """One process at a time decides whether a lock is stale, where the file system can tell."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        for _ in range(50):  # five seconds: whoever holds it does so for a few file operations
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.1)
            except OSError:
                break  # no such locks on this file system: O_EXCL decides
        yield
    finally:
        os.close(descriptor)


def _self() -> dict[str, Any]:
    return {
        **this_process(),
        "job": os.environ.get("SLURM_JOB_ID"),
        "restarts": os.environ.get("SLURM_RESTART_COUNT"),
    }


def _ended(job: str) -> bool:
    """True if SLURM reports that a job has ended; False if it runs, or its state is unknown."""
    command = ["squeue", "--noheader", f"--jobs={job}", "--format=%A %T"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return False
    if result.returncode != 0:
        return "invalid job id" in result.stderr.lower()  # SLURM forgets a job some minutes after its end
    lines = [line.split() for line in result.stdout.splitlines() if line.strip()]
    return not any(line[0] == job and line[1] in ALIVE for line in lines)


def _read(path: Path) -> dict[str, Any] | None:
    """The holder; None if the file is gone, or not yet completely written."""
    holder = read_process(path)
    if holder is None or not isinstance(holder.get("token"), str):
        return None
    return holder if all(isinstance(holder.get(key), str | None) for key in ("job", "restarts")) else None


def _describe(folder: Path, holder: dict[str, Any] | None) -> str:
    if holder is None:
        return f"{folder}: another process is beginning this run"
    job = f", SLURM job {holder['job']}" if holder.get("job") else ""
    restart = f" restart {holder['restarts']}" if holder.get("restarts") else ""
    return f"{folder}: this run is being written by process {holder['pid']} on {holder['host']}{job}{restart}"
