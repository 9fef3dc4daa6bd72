"""Memory: its peak, and what to do where it does not suffice: fewer sequences at once, or how many fit."""

from __future__ import annotations

import ctypes
import functools
import gc
import platform
import resource
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from experiments.runtime import caching_allocator
from experiments.runtime.errors import OutOfMemoryError

T = TypeVar("T")

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Names of settings of the C library (malloc.h)."""
LARGE = 2**25
"""Bytes from which a block is a separate mapping: the highest value to which glibc raises this limit."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for the errors of PyTorch, NumPy, cuBLAS and Python when an allocation fails."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(
        message in str(error)
        for message in ("can't allocate memory", "std::bad_alloc", "CUBLAS_STATUS_ALLOC_FAILED")
    )


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
                        f"each: {reason}; set budget.micro_batch_size lower, which changes memory and not "
                        "results"
                    ) from error
            else:
                if tried and not self.auto:
                    raise OutOfMemoryError(
                        f"out of memory with {tried[0]} sequences at once: {reason}; {self.size} fit: set "
                        f"budget.micro_batch_size={self.size} (or auto), which changes memory and not results"
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


def keep_freed_memory() -> None:
    """Lets this process keep the memory that it frees, for its next tensors, until ``reset_peak_memory``.

    By default the C library returns the free end of its heap, and each step has page faults for it again.
    Blocks of ``LARGE`` bytes are not in the heap: our allocator caches them where it can be built.
    """
    if platform.libc_ver()[0] == "glibc":
        _libc().mallopt(MMAP_THRESHOLD, LARGE)
        _libc().mallopt(TRIM_THRESHOLD, 2**31 - 1)
        caching_allocator.install(LARGE)


def reset_peak_memory() -> None:
    """Return freed memory to the system and start a new peak, so that runs of one process stay apart."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    caching_allocator.release()
    try:
        _libc().malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return  # not Linux: the peak is then that of the complete process


@functools.cache
def _libc() -> ctypes.CDLL:
    """The C library, which every process of Python has loaded."""
    return ctypes.CDLL(None)


def peak_memory(device: torch.device) -> int:
    """Peak bytes since the run began: of the GPU's allocator, or of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    except (OSError, StopIteration):
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
