"""Measuring time: warm-up until the times are stable, repetitions, and peak rates of the machine."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence

import torch

WINDOW = 10
"""Repetitions with a median that is compared with that of the previous ``WINDOW``."""
TOLERANCE = 0.02
"""Times are stable when the two medians differ by less than this fraction."""
CPU_SIZES, CUDA_SIZES = (1024, 2048), (4096, 8192)
"""Sizes of the square matrices in timed products."""
CUDA_WARMUP_SECONDS, CUDA_LAUNCHES = 1.0, 20
"""A GPU's clocks rise under load: so long products run before the launches that are timed together."""
LEAST_BYTES, PASSED_BYTES = 2**20, 2**28
"""Least size of a buffer for memory rates, and about the bytes moved in one measurement."""


def is_stable(times: Sequence[float], window: int = WINDOW) -> bool:
    """Return True if the medians of the last and the previous ``window`` times are within ``TOLERANCE``."""
    if window < 1 or len(times) < 2 * window:
        return False
    previous = statistics.median(times[-2 * window : -window])
    return abs(statistics.median(times[-window:]) / previous - 1) < TOLERANCE


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
        """Times of a warm-up: it ends when they are stable, or ``seconds`` are spent, after two at least."""
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
    """FLOP/s of the fastest of some products of square matrices: the peak of this process."""
    watch = Stopwatch(device)
    fastest = 0.0
    for size in CUDA_SIZES if device.type == "cuda" else CPU_SIZES:
        a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        out = torch.empty_like(a)
        multiply = functools.partial(torch.mm, a, b, out=out)
        if device.type == "cuda":
            seconds = _in_a_row(watch, multiply)
        else:
            seconds = min(watch.repeat(multiply, least=5))
        fastest = max(fastest, 2 * size**3 / seconds)
    return fastest


def _in_a_row(watch: Stopwatch, call: Callable[[], object]) -> float:
    """Return the seconds of one of many launches in a row on a GPU at full clock rate, by CUDA events."""
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
    buffer = torch.ones(rows, columns, device=device)  # not zeros: these use no memory until they are written
    vector, out = torch.ones(columns, device=device), torch.empty(rows, device=device)
    source, target = buffer.chunk(2)
    passes = max(1, PASSED_BYTES // (4 * buffer.numel()))

    def read() -> None:
        for _ in range(passes):
            buffer.sum()

    def copy() -> None:
        for _ in range(passes):
            target.copy_(source)

    def multiply() -> None:
        for _ in range(passes):
            torch.mv(buffer, vector, out=out)

    fastest = min(min(watch.repeat(call, least=5)) for call in (read, copy, multiply))
    return 4 * buffer.numel() * passes / fastest


def quartiles(times: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median and third quartile."""
    if len(times) == 1:
        return times[0], times[0], times[0]
    low, median, third = statistics.quantiles(times, n=4, method="inclusive")
    return low, median, third
