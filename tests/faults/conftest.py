"""What the fault tests share: processes that die on purpose, and the record behind docs/faults.md."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))  # commands.py


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


Record = Callable[..., None]


@pytest.fixture
def record() -> Record:
    """Notes what was injected and what happened: a line of JSON in the file ``FAULT_RECORD`` names."""

    def note(fault: str, injected: str, count: int, happened: str) -> None:
        path = os.environ.get("FAULT_RECORD")
        if path:
            row = {"fault": fault, "injected": injected, "count": count, "happened": happened}
            with Path(path).open("a") as file:
                file.write(json.dumps(row) + "\n")

    return note
