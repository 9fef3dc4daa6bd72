"""Processes that die on purpose, and how often."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

import pytest


def times(default: int, full: int) -> pytest.MarkDecorator:
    """Runs a test with a few injections, and under the marker ``full`` with all."""
    return pytest.mark.parametrize("times", [default, pytest.param(full, marks=pytest.mark.full)])


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
