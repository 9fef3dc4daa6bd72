"""Commands in forked processes, with streams, variables and limits that few shells give them."""

from __future__ import annotations

import os
import resource
import runpy
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hydra.core.global_hydra import GlobalHydra

from tests.faults.children import fork
from tests.fork_server import output

SECONDS = 120
"""By the clock, after which a command counts as hanging."""
MEMORY = 4 << 30
"""Bytes that a command may have besides what it was forked with."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The surroundings that a command starts in."""

    closed: Sequence[int] = ()
    """Streams that are closed."""
    full: Sequence[int] = ()
    """Streams that nothing can be written to."""
    variables: dict[str, str | None] = field(default_factory=dict)
    """Variables of the environment; None removes one."""
    umask: int = 0o022
    file_bytes: int | None = None
    """Size above which no file can be written, as on a full disk."""
    no_folder: bool = False
    """The working folder has been removed."""

    def enter(self, folder: Path, log: int) -> None:
        """Give this process these surroundings; what it prints is written to a pipe."""
        os.chdir(folder)
        if self.no_folder:
            folder.rmdir()
        os.umask(self.umask)
        for name in [name for name in os.environ if name.startswith(("WANDB", "HYDRA", "FAULT_", "PYTEST"))]:
            del os.environ[name]
        for name, value in self.variables.items():
            os.environ.pop(name, None)
            os.environ.update({name: value} if value is not None else {})
        for number, opened in ((0, os.open(os.devnull, os.O_RDWR)), (1, log), (2, log)):
            os.dup2(os.open("/dev/full", os.O_WRONLY) if number in self.full else opened, number)
        os.closerange(3, 256)
        sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
        sys.stdout = sys.__stdout__ = output(1, "strict")  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = output(2, "backslashreplace")  # type: ignore[misc]
        for number in self.closed:
            os.close(number)
            setattr(sys, ("stdin", "stdout", "stderr")[number], None)
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, most))
        if self.file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.file_bytes, resource.RLIM_INFINITY))


def ended(
    module: str, words: Sequence[str], folder: Path, surroundings: Surroundings
) -> tuple[int | None, str]:
    """Return exit code and output of ``python -m archbench.MODULE words``; None for one that hangs.

    The modules of the project are those of this process, which saves the seconds of importing them.
    """
    (folder / "there").mkdir()
    reader, log = os.pipe()
    pid = fork(partial(_run, module, words, partial(surroundings.enter, folder / "there", log)))
    os.close(log)
    found, status, text, until = 0, 0, b"", time.monotonic() + SECONDS
    while not found and time.monotonic() < until:
        found, status = os.waitpid(pid, os.WNOHANG)
        while select.select([reader], [], [], 0.01)[0] and (piece := os.read(reader, 1 << 16)):
            text += piece
        time.sleep(0.01)
    if not found:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os.close(reader)
    return os.waitstatus_to_exitcode(status) if found else None, text.decode(errors="replace")


def _run(module: str, words: Sequence[str], enter: Callable[[], None]) -> None:
    os.setsid()
    GlobalHydra.instance().clear()
    enter()
    sys.argv = ["-m", *words]
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
    try:
        runpy.run_module(f"archbench.{module}", run_name="__main__", alter_sys=True)
    except SystemExit as stopped:
        if stopped.code is not None:  # as Python ends
            raise
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
