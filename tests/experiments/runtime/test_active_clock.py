"""Suspensions are real: a child process that is stopped and continued."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from archbench.experiments.runtime.active_clock import ActiveClock
from archbench.experiments.runtime.watchdog import Watchdog

SUSPENDED = 2.0


def suspended_child(report: Path, seconds_of_a_step: float, limit: float) -> tuple[int, float]:
    """Return the exit code of a child that is suspended in a step, and the seconds that it counts for it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        clock = ActiveClock()
        with Watchdog(limit, report, clock) as watchdog:
            with watchdog.step():
                pass
            begun = clock.seconds()
            os.write(writer, b"begun\n")
            with watchdog.step():
                time.sleep(seconds_of_a_step)
            os.write(writer, str(clock.seconds() - begun).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        pipe.readline()
        os.kill(child, signal.SIGSTOP)
        time.sleep(SUSPENDED)
        os.kill(child, signal.SIGCONT)
        counted = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), float(counted or "nan")


@pytest.mark.full
def test_a_suspended_step_does_not_hang_and_its_pause_does_not_count(tmp_path: Path) -> None:
    code, counted = suspended_child(tmp_path / "hang.txt", 2.2, limit=1.5)
    assert code == 0
    assert not (tmp_path / "hang.txt").exists()
    # The sleep goes on while the process is suspended: 0.2 s of it are left afterwards.
    assert counted < 1.0


@pytest.mark.full
def test_a_step_that_hangs_after_a_suspension_is_noticed(tmp_path: Path) -> None:
    code, _ = suspended_child(tmp_path / "hang.txt", 60, limit=0.5)
    assert code == 1
    assert "suspended_child" in (tmp_path / "hang.txt").read_text()


def test_computing_is_no_suspension() -> None:
    clock = ActiveClock()
    clock.beats = True
    begun, time_begun = clock.seconds(), time.monotonic()
    while time.monotonic() < time_begun + 1.05:  # keeps the interpreter, so no thread looks at the time
        pass
    assert clock.seconds() - begun == pytest.approx(time.monotonic() - time_begun, abs=0.1)
    assert clock.suspended == 0
