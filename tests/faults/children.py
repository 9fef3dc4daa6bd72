"""Forked processes, some of which die on purpose, and how often."""

from __future__ import annotations

import functools
import gc
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable

import pytest
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.tensor.parallel  # noqa: F401

from archbench.experiments.runtime.errors import RunError
from archbench.experiments.training.parallel import collectives
from tests import ROOT, SOURCE
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
    gc.freeze()  # what the parent has is not looked through again
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


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun would set for a process."""
    words = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    path = os.pathsep.join(map(str, (SOURCE, ROOT, ROOT / "tests")))
    return {
        **os.environ,
        **{name: str(value) for name, value in words.items()},
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": path,
    }


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
