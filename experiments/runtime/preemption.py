"""Preemption: reasons for which a run stops before its end.

A run stops on a signal or before the end of its SLURM job.
A signal is only recorded when it arrives. The trainer checks between two steps, and between two batches of an
evaluation, and then saves and ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import Any

from archbench.experiments.runtime.errors import ConfigError, Preempted
from archbench.experiments.runtime.machine import process_rank

UNSAVED = "with nothing to save"
"""End of the reason of a run that a signal ended before its first step, or after its result."""
SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGXCPU")
    if hasattr(signal, name)
)
"""Signals that ask to stop: SIGHUP comes when a terminal is closed, SIGXCPU at a limit of processor time."""


class Interruptions:
    """Records reasons to stop a run, from ``with`` to its end.

    A signal that stopped nothing, because it came after the last check, is then raised again for whoever
    began the run, such as a sweep; not where it would kill the process.
    """

    def __init__(self, margin: float, *, clock: bool = True) -> None:
        """``margin``: seconds before the end of a SLURM job at which to stop.

        ``clock=False`` leaves that to another process: of multiple, with different clocks, one decides.
        """
        self._signal: signal.Signals | None = None
        self._before: dict[int, Any] = {}
        self._end = _job_end(margin) if clock else None

    def __enter__(self) -> Interruptions:
        if threading.current_thread() is threading.main_thread():
            self._before = {
                signal_number: signal.signal(signal_number, self._note)
                for signal_number in SIGNALS
                if _ours(signal_number)
            }
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signal_number, handler in self._before.items():
            signal.signal(signal_number, handler)
        if self._signal is not None and error is None and callable(signal.getsignal(self._signal)):
            signal.raise_signal(self._signal)

    @property
    def reason(self) -> str | None:
        """Return why the run should stop now, or None."""
        if self._signal is not None:
            return f"stopped by {self._signal.name}"
        if self._end is not None and time.time() >= self._end:
            return "stopped before the end of the job's time"
        return None

    def _note(self, signal_number: int, frame: object) -> None:
        self._signal = signal.Signals(signal_number)


def deferred() -> Interruptions:
    """Return a context in which signals to stop wait for its end, as for what must not be left half done."""
    return Interruptions(margin=0, clock=False)


def is_default(signal_number: signal.Signals) -> bool:
    """Return True for a signal that is handled as Python or ``stops_at_once`` does; False with ``nohup``."""
    return signal.getsignal(signal_number) in (signal.SIG_DFL, signal.default_int_handler, stop_at_once)


def _ours(signal_number: signal.Signals) -> bool:
    """Return False for a signal that is ignored, or that a launcher handles.

    submitit handles TERM, to be requeued by SLURM. It receives USR2, which requests to save, when the run has
    saved (``experiments/config/hydra_app.py``).
    """
    handler = signal.getsignal(signal_number)
    in_sweep = getattr(handler, "__module__", "") == "archbench.experiments.runtime.child_processes"
    return signal_number == signal.SIGUSR2 or in_sweep or is_default(signal_number)


def _job_end(margin: float) -> float | None:
    """Return when to stop, in seconds since 1970, by the end time of the SLURM job; None outside of a job.

    At most a tenth of the job's time is left unused. An end in the past is that of a job that has ended, in
    whose shell, such as a screen session, the variable is left.
    """
    try:
        end = float(os.environ["SLURM_JOB_END_TIME"])
    except (KeyError, ValueError):
        return None
    if end <= time.time():
        return None
    try:
        length = end - float(os.environ["SLURM_JOB_START_TIME"])
    except (KeyError, ValueError):
        length = float("inf")
    return end - min(margin, length / 10)


def stop_at_once(signal_number: int, frame: object) -> None:
    """Handle a signal where there is no run to save. Raises Preempted."""
    raise Preempted(reason=f"stopped by {signal.Signals(signal_number).name}, {UNSAVED}")


@contextmanager
def stops_at_once() -> Iterator[None]:
    """Exit with code 75 at a signal to stop, where there is no run to save, as during data preparation."""
    previous: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            previous = {
                signal_number: signal.signal(signal_number, stop_at_once)
                for signal_number in SIGNALS
                if _ours(signal_number)
            }
        yield
    finally:
        for signal_number, handler in previous.items():
            signal.signal(signal_number, handler)


@contextmanager
def ends_at_signals() -> Iterator[None]:
    """Let a signal to stop end a command with one sentence and code 75.

    If multiple processes share a run, the trainer ends all of them together.
    """
    try:
        is_single = process_rank().size == 1
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
    try:
        with stops_at_once() if is_single else nullcontext():
            yield
    except Preempted as preempted:
        if preempted.reason.endswith(UNSAVED):  # a run that has saved prints this itself
            sys.stderr.write(
                f"{preempted.reason.removesuffix(f', {UNSAVED}')}; give the same command again\n"
            )
        sys.exit(preempted.code)
