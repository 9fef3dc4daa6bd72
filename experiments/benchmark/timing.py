"""Measuring time: warm-up until the times stand still, repetitions, and what the machine can reach at all."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence

import torch

WINDOW = 10
"""Repetitions whose median is compared with that of as many before them."""
TOLERANCE = 0.02
"""Times stand still when the two medians differ by less than this share."""
CPU_SIZES, CUDA_SIZES = (1024, 2048), (4096, 8192)
"""Sides of the square matrices whose product is timed."""
CUDA_WARMUP_SECONDS, CUDA_LAUNCHES = 1.0, 20
"""A GPU's clocks rise under load: so long products run before the launches that are timed together."""
LEAST_BYTES, PASSED_BYTES = 2**20, 2**28
"""Memory is passed over in pieces of this size at least, until about so many bytes have moved."""


def is_stable(times: Sequence[float], window: int = WINDOW) -> bool:
    """Whether the median of the last ``window`` times is within ``TOLERANCE`` of that of the ones before."""
    if window < 1 or len(times) < 2 * window:
        return False
    before = statistics.median(times[-2 * window : -window])
    return abs(statistics.median(times[-window:]) / before - 1) < TOLERANCE


class Stopwatch:
    """Times calls on one device, each to its end."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def once(self, call: Callable[[], object]) -> float:
        """Seconds of one call."""
        self._wait()
        begin = time.perf_counter()
        call()
        self._wait()
        return time.perf_counter() - begin

    def until_stable(self, call: Callable[[], object], seconds: float) -> list[float]:
        """Times of a warm-up: it ends when they stand still, or ``seconds`` are spent, after two at least."""
        times: list[float] = []
        while not is_stable(times) and (len(times) < 2 or sum(times) < seconds):
            times.append(self.once(call))
        return times

    def repeat(self, call: Callable[[], object], least: int, seconds: float = 0.0) -> list[float]:
        """Times of ``least`` calls, and of more until ``seconds`` are spent."""
        times: list[float] = []
        while len(times) < least or sum(times) < seconds:
            times.append(self.once(call))
        return times

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of the fastest of some products of square matrices: what this process can reach here."""
    watch = Stopwatch(device)
    best = 0.0
    for size in CUDA_SIZES if device.type == "cuda" else CPU_SIZES:
        a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        out = torch.empty_like(a)
        multiply = functools.partial(torch.mm, a, b, out=out)
        if device.type == "cuda":
            seconds = _in_a_row(watch, multiply)
        else:
            seconds = min(watch.repeat(multiply, least=5))
        best = max(best, 2 * size**3 / seconds)
    return best


def _in_a_row(watch: Stopwatch, call: Callable[[], object]) -> float:
    """Return the seconds of one of many launches in a row on a GPU whose clocks are up, by its own events."""
    watch.repeat(call, least=1, seconds=CUDA_WARMUP_SECONDS)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()  # type: ignore[no-untyped-call]
    for _ in range(CUDA_LAUNCHES):
        call()
    end.record()  # type: ignore[no-untyped-call]
    end.synchronize()  # type: ignore[no-untyped-call]
    return begin.elapsed_time(end) / 1000 / CUDA_LAUNCHES  # type: ignore[no-any-return, no-untyped-call]


def memory_rate(device: torch.device, num_bytes: int) -> float:
    """Bytes/s of the fastest of some passes over ``num_bytes``: reading, copying, a product with a vector.

    What fits into a cache is read from there, as it is by a model of that size.
    """
    watch, columns = Stopwatch(device), 1024
    rows = -(-max(num_bytes, LEAST_BYTES) // (4 * columns))
    rows += rows % 2
    whole = torch.ones(rows, columns, device=device)  # not zeros: these take no memory until they are written
    vector, out = torch.ones(columns, device=device), torch.empty(rows, device=device)
    source, target = whole.chunk(2)
    passes = max(1, PASSED_BYTES // (4 * whole.numel()))

    def read() -> None:
        for _ in range(passes):
            whole.sum()

    def copy() -> None:
        for _ in range(passes):
            target.copy_(source)

    def multiply() -> None:
        for _ in range(passes):
            torch.mv(whole, vector, out=out)

    fastest = min(min(watch.repeat(call, least=5)) for call in (read, copy, multiply))
    return 4 * whole.numel() * passes / fastest


def quartiles(times: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median and third quartile."""
    if len(times) == 1:
        return times[0], times[0], times[0]
    first, median, third = statistics.quantiles(times, n=4, method="inclusive")
    return first, median, third
