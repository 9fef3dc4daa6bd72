"""Exceptions that end a run, each with its exit code.

0 complete · 1 unexpected error · 2 bad configuration · 3 bad data · 4 diverged ·
5 out of memory · 6 storage or checkpoint · 7 another process holds the run ·
75 preempted, may be continued. ``docs/reference/reliability.md`` has the remedy for each.
"""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from archbench.architectures.nearest_name import nearest_name
from archbench.experiments.runtime.synonyms import SYNONYMS


class RunError(Exception):
    """Base class: its message is all a person sees, without a traceback."""

    exit_code = 1
    status = "failed"


class ConfigError(RunError, ValueError):
    """An invalid setting: the message has key, value, remedy and the nearest valid name."""

    exit_code = 2


class DataError(RunError, ValueError):
    """Data that cannot be used: names the file, the line or row, and the remedy."""

    exit_code = 3


class DivergedError(RunError):
    """A loss, gradient, logit or metric that is not finite, or a test score worse than the uniform code.

    A step whose loss or gradient is not finite does not change the weights.
    """

    exit_code = 4
    status = "diverged"


class OutOfMemoryError(RunError):
    """The model and its batch do not fit."""

    exit_code = 5
    status = "oom"


class CheckpointError(RunError):
    """No checkpoint of a run that has some can be read, or none can be written."""

    exit_code = 6


class LockedError(RunError):
    """Another process is writing this run."""

    exit_code = 7


class Preempted(SystemExit):
    """The run was told to stop, has saved, and can be continued.

    Not an ``Exception``, so that it ends a sweep and not only one of its runs.
    """

    exit_code = 75

    def __init__(self, code: int = exit_code, reason: str = "stopped by a signal") -> None:
        super().__init__(code)
        self.args = (code, reason)  # so that it can travel between processes
        self.reason = reason


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for the errors of PyTorch, NumPy, cuBLAS and Python when an allocation fails."""
    torch = sys.modules.get("torch")  # without it none of its errors can be raised
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(
        message in str(error)
        for message in ("can't allocate memory", "std::bad_alloc", "CUBLAS_STATUS_ALLOC_FAILED")
    )


def to_run_error(failure: Exception) -> RunError:
    """Return ``failure`` if it is a RunError, else the RunError that describes it.

    If the system cannot read or write, it is an error of storage; of all other exceptions, the record gets
    the traceback.
    """
    if isinstance(failure, RunError):
        return failure
    if is_out_of_memory(failure):
        return OutOfMemoryError(
            f"out of memory: {failure}; halve budget.micro_batch_size, which changes memory, and "
            "results only with dropout"
        )
    if isinstance(failure, OSError) and not isinstance(failure, ConnectionError):
        return CheckpointError(f"storage fails: {failure}; make room, or choose another place with runs=")
    operation, is_refused, _ = str(failure).partition(" does not have a deterministic implementation")
    if is_refused:
        return ConfigError(
            f"device.deterministic=true: PyTorch has no deterministic {operation} on this device; choose "
            "another model, or set device.deterministic=false"
        )
    lines = traceback.format_exception(failure)
    return RunError(f"{type(failure).__name__}: {failure}\n{''.join(lines)}")


@contextmanager
def as_run_errors() -> Iterator[None]:
    """Raise every exception within as a RunError, which has a status and an exit code."""
    try:
        yield
    except Exception as error:
        raise to_run_error(error) from error


def is_full(error: OSError) -> bool:
    """Return True if a disk is full, its quota is exhausted, or it is read-only."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


def nearest_folder(path: Path) -> str:
    """``; did you mean 'x'?`` about the first folder of a path that does not exist; empty if none is near."""
    missing = path.absolute()
    while not missing.parent.is_dir():
        missing = missing.parent
    folders = [entry.name for entry in missing.parent.iterdir() if entry.is_dir()]
    close = nearest_name(missing.name, folders)
    return f"; did you mean '{close}'?" if close else ""


def nearest(name: str, options: Iterable[str]) -> str:
    """``; did you mean 'x'?`` if an option is close, else the list of options."""
    options = sorted(options)
    if (close := nearest_name(name, options, SYNONYMS)) is not None:
        return f"; did you mean '{close}'?"
    return f"; options: {', '.join(map(_short, options))}" if options else ""


def _short(option: str) -> str:
    """Return a name as it is printed: that of a column may be the whole of a file that is no table."""
    text = repr(option)[1:-1] if not option.isprintable() else option
    return text if len(text) <= LONGEST_OPTION else f"{text[:LONGEST_OPTION]}..."


LONGEST_OPTION = 100
