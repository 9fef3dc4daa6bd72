"""Signals to a sweep in parallel processes: its workers save their runs and begin no further ones.

The process of the sweep only forwards a signal, and waits. If it raised, joblib would kill the workers.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from contextlib import suppress

from experiments.runtime.child_processes import end_with
from experiments.runtime.preemption import SIGNALS, is_default, stop_at_once

_asked: set[int] = set()
"""Signals that this process got, as the parent of workers or as a worker between two runs."""


def hand_signals_on() -> None:
    """From now on forward signals to stop to the workers of this process."""
    for signal_number in filter(is_default, SIGNALS):
        signal.signal(signal_number, _ask_workers)


def _ask_workers(signal_number: int, frame: object) -> None:
    _asked.add(signal_number)
    workers = multiprocessing.active_children()
    for worker in workers:
        with suppress(ProcessLookupError):
            os.kill(worker.pid or 0, signal.SIGTERM)
    if not workers:
        stop_at_once(signal_number, frame)


def asked_to_stop() -> bool:
    """Return True after a signal to stop, or ``note_stop`` was called."""
    return bool(_asked)


def note_stop(signal_number: int = signal.SIGTERM, frame: object = None) -> None:
    """Begin no further run in this worker."""
    _asked.add(signal_number)


def begin_worker(parent: int) -> None:
    """Set a worker up: it records signals between two runs; without its parent it saves and ends."""
    for signal_number in filter(is_default, SIGNALS):
        signal.signal(signal_number, note_stop)
    end_with(parent)


def is_worker() -> bool:
    """Return True between the runs of a process that ``begin_worker`` has set up."""
    return signal.getsignal(signal.SIGTERM) is note_stop
