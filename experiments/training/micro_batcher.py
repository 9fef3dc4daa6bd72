"""Fewer sequences at once where memory does not suffice."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

import torch

from archbench.experiments.runtime.errors import OutOfMemoryError, is_out_of_memory

T = TypeVar("T")


class MicroBatcher:
    """Chooses how many sequences are computed at once.

    Work that runs out of memory is repeated with half as many. With ``auto`` the
    run continues with the size that fits: the batch is the same, and so is the loss to rounding.
    Otherwise the run ends, and the message recommends that size.
    """

    def __init__(self, size: int | str | None, batch_size: int, *, alone: bool = True) -> None:
        """``alone=False`` never retries: multiple processes must stay in step."""
        self.alone = alone
        self.auto = size == "auto"
        self.size = size if isinstance(size, int) else batch_size

    def run(self, work: Callable[[int], T]) -> T:
        """Return ``work(size)``, which must be repeatable. Raises OutOfMemoryError."""
        tried: list[int] = []
        reason = ""
        while True:
            try:
                result = work(self.size)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                reason = reason or str(error).strip().partition("\n")[0] or type(error).__name__
                if not self.alone:
                    raise OutOfMemoryError(
                        f"out of memory in one of several processes, with {self.size} sequences at once in "
                        f"each: {reason}; set budget.micro_batch_size lower, which changes memory, and "
                        "results only with dropout"
                    ) from error
            else:
                if tried and not self.auto:
                    raise OutOfMemoryError(
                        f"out of memory with {tried[0]} sequences at once: {reason}; {self.size} fit: set "
                        f"budget.micro_batch_size={self.size} (or auto), which changes memory, and "
                        "results only with dropout"
                    )
                return result
            # After the handler, so that its traceback no longer references tensors of the failed attempt.
            tried.append(self.size)
            if self.size == 1:
                raise OutOfMemoryError(
                    f"out of memory even with one sequence at once: {reason}; choose a smaller model or a "
                    "shorter sequence"
                )
            self.size = (self.size + 1) // 2
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
