"""A limit on memory, and the largest batch that fits into it."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")
MOST = 2**16
"""Maximum number of sequences to try."""
FINENESS = 32
"""Relative precision, 1 / FINENESS, of the largest batch; exact below twice FINENESS."""


@contextmanager
def limited(device: torch.device, num_bytes: int | None) -> Iterator[None]:
    """Limit further memory of the process to ``num_bytes`` in the block; allocations above it fail.

    On a GPU this is of PyTorch's allocator; on a CPU, where only Linux can do it, of all private memory of
    the process (``RLIMIT_DATA``) on top of its current memory, which includes Python modules, some
    80 MiB in training. None sets no limit.
    """
    if num_bytes is None:
        yield
    elif device.type == "cuda":
        total_bytes = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, num_bytes / total_bytes), device.index)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, device.index)
    else:
        torch.ones(2**20).exp_()  # starts the threads: their stacks are not memory of the model
        # VmData is the private memory of the process, touched or not, which RLIMIT_DATA limits.
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmData"))
        data_bytes = 1024 * int(line.split()[1])
        previous = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes + num_bytes, previous[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, previous)


def can_limit(device: torch.device) -> bool:
    """Return True if ``limited`` is supported on a device."""
    return device.type == "cuda" or STATUS.exists()


def largest(fits: Callable[[int], bool]) -> tuple[int, int | None]:
    """Return the largest batch that fits (0 if none), and the smallest that was tried and does not fit.

    The batch is doubled until it does not fit, and the interval is then bisected. The second value
    is None if ``MOST`` sequences fit.
    """
    low, high = 0, 1
    while fits(high):
        if high >= MOST:
            return high, None
        low, high = high, 2 * high
    while high - low > max(1, low // FINENESS):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low, high
