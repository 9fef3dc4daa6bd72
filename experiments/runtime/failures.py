"""Exceptions that nobody raised on purpose, as errors that carry a status and an exit code."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from experiments.runtime.errors import CheckpointError, OutOfMemoryError, RunError
from experiments.runtime.memory import is_out_of_memory


def to_run_error(failure: Exception) -> RunError:
    """Return ``failure`` if it is a RunError, else the RunError that describes it.

    If the system cannot read or write, it is an error of storage; of all other exceptions, the record gets
    the traceback.
    """
    if isinstance(failure, RunError):
        return failure
    if is_out_of_memory(failure):
        return OutOfMemoryError(
            f"out of memory: {failure}; halve budget.micro_batch_size, which changes memory and not results"
        )
    if isinstance(failure, OSError) and not isinstance(failure, ConnectionError):
        return CheckpointError(f"storage fails: {failure}; make room, or choose another place with runs=")
    lines = traceback.format_exception(failure)
    return RunError(f"{type(failure).__name__}: {failure}\n{''.join(lines)}")


@contextmanager
def as_run_errors() -> Iterator[None]:
    """Raise every exception within as a RunError, which has a status and an exit code."""
    try:
        yield
    except Exception as error:
        raise to_run_error(error) from error
