"""One writer for each run folder: a lock file that names its holder and shows that it lives.

The file is created with O_EXCL. It is stale where its process is gone from this
machine or its SLURM job has ended, or if it was not touched for five minutes: then it is taken over.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from experiments.runtime.errors import CheckpointError, LockedError
from experiments.runtime.preemption import deferred

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

    def __enter__(self) -> RunLock:
        try:
            self._made = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
            self.folder.mkdir(parents=True, exist_ok=True)
            with _guard(self.folder):
                if not self._make():
                    holder = _read(self.path)
                    if not self._stale(holder):
                        raise LockedError(_describe(self.folder, holder))
                    self.path.unlink(missing_ok=True)
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
        return holder is not None and holder.get("token") == self.holder["token"]

    def check(self) -> None:
        """Raises LockedError if the lock was lost, so that further writes are not allowed."""
        if not self.held:
            raise LockedError(f"{_describe(self.folder, _read(self.path))}. This one stood still and stops")

    def _make(self) -> bool:
        try:
            descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "w") as file:
            file.write(json.dumps(self.holder, indent=1) + "\n")
        return True

    def _beat(self) -> None:
        while not self._done.wait(HEARTBEAT):
            with contextlib.suppress(OSError):
                if self.held:
                    os.utime(self.path)

    def _stale(self, holder: dict[str, Any] | None) -> bool:
        own_holder = self.holder
        if holder is not None and all(holder.get(k) == own_holder[k] for k in ("host", "boot", "namespace")):
            return _started(holder["pid"]) != holder.get("started")
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
    own_holder = _self()
    if all(holder.get(k) == own_holder[k] for k in ("host", "boot", "namespace")):
        alive = _started(holder["pid"]) == holder.get("started")
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
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
        "boot": _text(Path("/proc/sys/kernel/random/boot_id")),
        "namespace": _link(Path("/proc/self/ns/pid")),
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


def _started(pid: int) -> str | None:
    """When a process of this machine began, in ticks; None if it is gone. Process ids are reused."""
    stat = _text(Path(f"/proc/{pid}/stat"))
    if stat is not None:
        state, *fields = stat.rpartition(")")[2].split()
        return None if state in "ZX" else fields[18]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return None if Path("/proc/self").exists() else "unknown"


def _read(path: Path) -> dict[str, Any] | None:
    """The holder; None if the file is gone, or not yet completely written."""
    try:
        holder = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    # Without pydantic, which is slow to import: other processes wait for the guard meanwhile.
    if not isinstance(holder, dict) or not isinstance(holder.get("pid"), int):
        return None
    required_valid = all(isinstance(holder.get(key), str) for key in ("token", "host"))
    optional_valid = all(
        isinstance(holder.get(key), str | None) for key in ("started", "boot", "job", "restarts")
    )
    return holder if required_valid and optional_valid else None


def _describe(folder: Path, holder: dict[str, Any] | None) -> str:
    if holder is None:
        return f"{folder}: another process is beginning this run"
    job = f", SLURM job {holder['job']}" if holder.get("job") else ""
    restart = f" restart {holder['restarts']}" if holder.get("restarts") else ""
    return f"{folder}: this run is being written by process {holder['pid']} on {holder['host']}{job}{restart}"


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _link(path: Path) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
