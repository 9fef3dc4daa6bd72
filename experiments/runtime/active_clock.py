"""A clock that stands still while the process is suspended: by SIGSTOP, Ctrl-Z or ``scontrol suspend``.

A suspended process notices nothing, and its next look at the time is late. A thread therefore looks at the
time four times a second. If it is late by more than ``LATE`` and the main thread neither computed nor
waited for a core meanwhile, the process was suspended. While a step hangs, the thread is not late; if the
main thread keeps the interpreter, it computes. The sleep of a laptop needs no more: ``time.monotonic`` does
not count it on Linux.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

BEAT = 0.25
"""Seconds between two looks at the time."""
LATE = 1.0
"""Seconds without a look from which on the process was suspended."""


class ActiveClock:
    """Seconds in which the process was not suspended."""

    def __init__(self) -> None:
        self.suspended = 0.0
        """Seconds of suspensions so far; of each, up to ``BEAT`` is missing or too much."""
        self.beats = False
        """True while a thread calls ``beat`` every ``BEAT``; suspensions are noticed only then."""
        self._lock = threading.Lock()
        self._last = time.monotonic()
        self._active = active_seconds()

    def seconds(self) -> float:
        """Return the seconds since an arbitrary moment, suspensions left out."""
        with self._lock:
            now = time.monotonic()
            gap = now - self._last
            if self.beats and gap > LATE and active_seconds() - self._active < gap / 2:
                self.suspended += gap - BEAT / 2
            self._last = now
            return now - self.suspended

    def beat(self) -> float:
        """Return ``seconds``, and note how much the main thread has computed so far."""
        found = self.seconds()
        self._active = active_seconds()
        return found


def active_seconds() -> float:
    """Return the seconds in which the main thread computed or waited for a core.

    Only computing counts where the system does not say how long it waited.
    """
    main = threading.main_thread()
    assert main.ident is not None
    try:
        computed, waited, _ = Path(f"/proc/self/task/{main.native_id}/schedstat").read_text().split()
    except (OSError, ValueError):
        return time.clock_gettime(time.pthread_getcpuclockid(main.ident))
    return (int(computed) + int(waited)) / 1e9
