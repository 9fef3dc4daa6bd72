"""Processes that die on purpose, and how often."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

import pytest

from archbench.experiments.runtime.errors import RunError
from archbench.experiments.training.parallel import collectives
from tests.experiments.training.parallel.together import environment, free_port
from tests.tiers import turn

RECORDING = "FAULT_RECORD" in os.environ
"""Whether faults are counted for the page (tests/faults/table.py): then all are injected."""


def times(default: int, recorded: int) -> pytest.MarkDecorator:
    """Runs a test with a few injections, or with all where they are recorded."""
    return pytest.mark.parametrize("times", [recorded if RECORDING else default])


def seeds(few: int, recorded: int) -> pytest.MarkDecorator:
    """Runs a test with a few of the seeds, in turn by commit, or with all where they are recorded."""
    chosen = range(recorded) if RECORDING else sorted((few * turn() + each) % recorded for each in range(few))
    return pytest.mark.parametrize("seed", chosen)


def in_a_child(work: Callable[[], object]) -> int:
    """Runs ``work`` in a forked process and waits; gives its exit code, negative for a signal.

    0 where it returned, 99 where it raised (the traceback is on stderr).
    """
    pid = fork(work)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fork(work: Callable[[], object]) -> int:
    """Starts ``work`` in a forked process; gives its number."""
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        work()
        code = 0
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else 98
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def in_children(size: int, work: Callable[[int], object], seconds: float = 300) -> list[int]:
    """Exit codes of forked processes that do ``work(rank)`` together, as ``torchrun`` would start them.

    Those still there after ``seconds`` are killed (-9).
    """
    port = free_port()

    def one(rank: int) -> None:
        os.environ.update(environment(rank, size, port))
        try:
            work(rank)
            collectives.stop()
        except RunError as error:
            print(f"process {rank}: {type(error).__name__}: {error}", file=sys.stderr)
            sys.exit(error.exit_code)

    pids = [fork(functools.partial(one, rank)) for rank in range(size)]
    until, codes = time.monotonic() + seconds, {}
    while len(codes) < size:
        for pid in set(pids) - set(codes):
            if time.monotonic() > until:
                os.kill(pid, signal.SIGKILL)
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                codes[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return [codes[pid] for pid in pids]
