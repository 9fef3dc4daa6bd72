"""Child processes that end with the process that started them, even where that is killed.

A child looks for its parent once a second, which works on every system. It then gets SIGTERM, so that a run
saves itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

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
        arguments: such as ``-m experiments.train``; the module calls ``end_with_parent``.
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
