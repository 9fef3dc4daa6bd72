"""Child processes: they end with the process that started them, and the workers of a sweep save their runs.

A child looks for its parent once a second, which works on every system. It then gets SIGTERM, so that a run
saves itself. The process of a sweep only forwards a signal, and waits: if it raised, joblib would kill the
workers. They save their runs and begin no further ones.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from archbench.experiments.runtime.preemption import SIGNALS, is_default, stop_at_once

_PARENT = "ARCHBENCH_PARENT"
"""Variable of the environment with the number of the process to end with."""
SECONDS = 1.0
"""Seconds between two looks."""
GRACE_SECONDS = 3.0
"""Seconds in which a process without a run to save may release its locks and remove its files."""


def run_python(
    arguments: Sequence[str], *, standard_input: str | None = None, capture: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run Python with arguments and wait, as ``subprocess.run`` does; the child ends with this process.

    Args:
        arguments: such as ``-m archbench.experiments.train``; the module calls ``end_with_parent``.
        standard_input: what the child reads; None to inherit that of this process.
        capture: return the output of the child, instead of letting it print.
    """
    command, pipe = [sys.executable, *arguments], subprocess.PIPE if capture else None
    with subprocess.Popen(
        command,
        env=os.environ | {_PARENT: str(os.getpid())},
        stdin=None if standard_input is None else subprocess.PIPE,
        stdout=pipe,
        stderr=pipe,
        text=True,
    ) as child:
        try:
            output, errors = child.communicate(standard_input)
        except BaseException:  # Ctrl-C, or a signal whose handler raises
            child.terminate()
            child.wait()
            raise
    return subprocess.CompletedProcess(command, child.returncode, output, errors)


def end_with_parent() -> None:
    """End this process with the one that started it, if that was ``run_python``."""
    if (parent := os.environ.pop(_PARENT, None)) is not None:
        end_with(int(parent))


def end_with(parent: int) -> None:
    """End this process as soon as its parent is not ``parent`` any more."""
    handler = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=_watch, args=(parent, handler), daemon=True).start()


def _watch(parent: int, handler: object) -> None:
    while os.getppid() == parent:
        time.sleep(SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    while signal.getsignal(signal.SIGTERM) != handler:  # a run is saving itself
        time.sleep(SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)  # else a worker would wait for more work


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
