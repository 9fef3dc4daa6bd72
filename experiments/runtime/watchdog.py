"""Ends what makes no progress: a training step that hangs, and a SLURM job whose restarts gain too little."""

from __future__ import annotations

import faulthandler
import os
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NotRequired

from typing_extensions import TypedDict

from archbench.experiments.runtime.active_clock import BEAT, ActiveClock
from archbench.experiments.runtime.atomic_io import write_json
from archbench.experiments.runtime.errors import RunError
from archbench.experiments.runtime.json_state import read_json
from archbench.experiments.runtime.machine import job_number

FIRST = 6
"""Times the limit that the first step may take: kernels are compiled in it."""
SLOW = 10
"""Times the median step that a step may take, where that is longer than the limit."""


class Watchdog:
    """Watches the steps of a run from a background thread.

    A step that takes longer than both ``limit`` seconds and ten times the median of
    the last hundred ends the process with exit code 1, after the stack of every thread
    was written to stderr and to ``report``. The run continues from its checkpoint when
    it is started again. Time in which the process is suspended does not count.
    """

    def __init__(self, limit: float, report: Path, clock: ActiveClock | None = None) -> None:
        self.limit, self.report, self.clock = limit, report, clock or ActiveClock()
        self._seconds: deque[float] = deque(maxlen=100)
        self._deadline = float("inf")
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watchdog:
        self.clock.beat()  # what was before is no suspension
        self.clock.beats = True
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.clock.beats = False
        self._done.set()
        self._thread.join()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around one step."""
        started = self.clock.seconds()
        self._deadline = started + self.allowed()
        try:
            yield
        finally:
            self._deadline = float("inf")
        self._seconds.append(self.clock.seconds() - started)

    def allowed(self) -> float:
        """Seconds that the next step may take."""
        if not self._seconds:
            return FIRST * self.limit
        return max(self.limit, SLOW * statistics.median(self._seconds))

    def _watch(self) -> None:
        while not self._done.wait(min(BEAT, self.limit / 4)):
            if self.clock.beat() > self._deadline:
                self._bark()

    def _bark(self) -> None:
        message = (
            f"error: a training step hangs (over {self.allowed():.0f} s); the stacks are in {self.report}\n"
        )
        try:
            self.report.parent.mkdir(parents=True, exist_ok=True)
            with self.report.open("w") as file:
                faulthandler.dump_traceback(file, all_threads=True)
            sys.stderr.write(message)
            faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
        finally:
            os._exit(1)


NAME = "restarts.json"
MOST = 3
"""Restarts in a row that gained less than they cost, after which a job is given up."""

_begun: float | None = None
"""When the session of this process began (monotonic); None before its first."""


class RestartRecord(TypedDict):
    """restarts.json: the newest session of a run in a SLURM job."""

    job: str
    restart: int
    step: int
    """Step of the checkpoint that the session began from."""
    seconds: float
    """Training seconds in that checkpoint."""
    compile_seconds: float
    """Seconds of ``torch.compile`` in that checkpoint."""
    cost: NotRequired[float]
    """Seconds from the start of the process to its first step; absent if it did not get there."""
    without_progress: int
    """Sessions in a row, before this one, that gained less than they cost."""


def check_progress(folder: Path, step: int, seconds: float = 0.0, compile_seconds: float = 0.0) -> None:
    """Count restarts of a SLURM job if the previous session trained for less time than its start-up cost.

    The count is in ``restarts.json`` and is reset by a new job, so that submitting
    again tries again.

    Args:
        folder: the run folder.
        step: that of the newest checkpoint.
        seconds: time spent in training steps up to it.
        compile_seconds: time of ``torch.compile`` up to it, which is part of the cost.

    Raises:
        RunError: the third such restart in a row.
    """
    global _begun
    _begun = time.monotonic() if _begun is not None else time.monotonic() - _process_age()
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return
    restart = job_number("SLURM_RESTART_COUNT")
    path = folder / NAME
    previous = _read(path)
    strikes, description = 0, ""
    if previous is not None and previous["job"] == job and restart > previous["restart"]:
        gained = seconds - previous["seconds"]
        cost = previous.get("cost", 0.0) + compile_seconds - previous["compile_seconds"]
        if step <= previous["step"]:
            strikes, description = previous["without_progress"] + 1, "the last one saved no new checkpoint"
        elif gained < cost:
            strikes = previous["without_progress"] + 1
            description = (
                f"the last one trained {gained:.1f} s, to step {step}, after {cost:.1f} s of starting"
            )
    folder.mkdir(parents=True, exist_ok=True)
    record: RestartRecord = {
        "job": job,
        "restart": restart,
        "step": step,
        "seconds": seconds,
        "compile_seconds": compile_seconds,
        "without_progress": strikes,
    }
    write_json(path, record)
    if strikes >= MOST:
        raise RunError(
            f"{folder}: job {job} restarted {strikes} times without a new checkpoint, or with less training "
            f"than a restart costs ({description}; it is at step {step}). See its output for why it "
            "stops, give it more time (CLUSTER_TIME, or --time of sbatch), and submit it again"
        )


def note_cost(folder: Path) -> None:
    """Add to ``restarts.json`` the seconds from the start to the first step."""
    if _begun is None or "SLURM_JOB_ID" not in os.environ:
        return
    if (record := _read(folder / NAME)) is not None:
        write_json(folder / NAME, {**record, "cost": time.monotonic() - _begun})


def _read(path: Path) -> RestartRecord | None:
    """Return the record; None if it is missing or damaged, so that the count is reset."""
    try:
        return read_json(path, RestartRecord)
    except RunError:
        return None


def _process_age() -> float:
    """Return the seconds since this process began; 0 where the system does not say."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        up = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, up - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
