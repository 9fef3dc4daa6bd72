"""Ends a process with a hanging training step, and reports the stack traces."""

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

FIRST = 6
"""Times the limit that the first step may take: kernels are compiled in it."""
SLOW = 10
"""Times the median step that a step may take, where that is longer than the limit."""


class Watchdog:
    """Watches the steps of a run from a background thread.

    A step that takes longer than both ``limit`` seconds and ten times the median of
    the last hundred ends the process with exit code 1, after the stack of every thread
    was written to stderr and to ``report``. The run continues from its checkpoint when
    it is started again.
    """

    def __init__(self, limit: float, report: Path) -> None:
        self.limit, self.report = limit, report
        self._seconds: deque[float] = deque(maxlen=100)
        self._deadline = float("inf")
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around one step."""
        started = time.monotonic()
        self._deadline = started + self.allowed()
        try:
            yield
        finally:
            self._deadline = float("inf")
        self._seconds.append(time.monotonic() - started)

    def allowed(self) -> float:
        """Seconds that the next step may take."""
        if not self._seconds:
            return FIRST * self.limit
        return max(self.limit, SLOW * statistics.median(self._seconds))

    def _watch(self) -> None:
        while not self._done.wait(min(1.0, self.limit / 4)):
            if time.monotonic() > self._deadline:
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
