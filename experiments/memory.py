"""What to do where memory does not suffice: fewer sequences at once, or a message that says how many fit."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

import torch

from experiments.errors import OutOfMemoryError

T = TypeVar("T")


def is_out_of_memory(error: BaseException) -> bool:
    """True for what PyTorch, NumPy and Python raise when an allocation fails."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("can't allocate memory", "std::bad_alloc")
    )


class Fitting:
    """How many sequences are computed at once.

    Work that runs out of memory is tried again with half as many. With ``auto`` the
    run goes on with what fits: the batch is the same, and so is the loss to rounding.
    Otherwise what was found ends the run, as advice.
    """

    def __init__(self, size: int | str | None, batch_size: int, *, alone: bool = True) -> None:
        """``alone=False``: of several processes, which keep step, none can try again."""
        self.alone = alone
        self.auto = size == "auto"
        self.size = size if isinstance(size, int) else batch_size

    def run(self, work: Callable[[int], T]) -> T:
        """``work(size)``, which must be repeatable. Raises OutOfMemoryError."""
        tried: list[int] = []
        said = ""
        while True:
            try:
                result = work(self.size)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                said = said or str(error).strip().partition("\n")[0] or type(error).__name__
                if not self.alone:
                    raise OutOfMemoryError(
                        f"out of memory in one of several processes, with {self.size} sequences at once in "
                        f"each: {said}; set budget.micro_batch_size lower, which changes memory and not "
                        "results"
                    ) from error
            else:
                if tried and not self.auto:
                    raise OutOfMemoryError(
                        f"out of memory with {tried[0]} sequences at once: {said}; {self.size} fit: set "
                        f"budget.micro_batch_size={self.size} (or auto), which changes memory and not results"
                    )
                return result
            # Out of the handler, so that the failed attempt's tensors are no longer held by its traceback.
            tried.append(self.size)
            if self.size == 1:
                raise OutOfMemoryError(
                    f"out of memory even with one sequence at once: {said}; choose a smaller model or a "
                    "shorter sequence"
                )
            self.size = (self.size + 1) // 2
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
