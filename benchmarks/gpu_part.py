"""Run a part of the GPU measurements in a child process: ``gpu_part.py mfu cuda 600 [--tiny]``.

Prints a JSON object for each row as soon as it is measured. A failure becomes a row with an ``error``, and
the next row is tried; so do rows that exceed the time.

It only needs the backbones and PyTorch, not Hydra, W&B or pandas.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from gpu_decode import decode_cells
from gpu_scan import scan_cells, warm_cells
from gpu_train import mfu_cells, moe_cells

from archbench.experiments.benchmark import timing
from archbench.experiments.benchmark.timing import matmul_rate, memory_rate

Cell = tuple[dict[str, Any], Callable[[], dict[str, Any]]]
"""Columns that identify a row, and the function that measures it."""


def rate_cells(device: torch.device, tiny: bool) -> Iterable[Cell]:
    """Return the cells of the peak rates of this device, as measured."""

    def measure() -> dict[str, float]:
        if tiny:
            timing.CPU_SIZES = timing.CUDA_SIZES = (128, 256)
        return {
            "matmul_flops_per_second": matmul_rate(device, torch.bfloat16),
            "memory_bytes_per_second": memory_rate(device, 2**24 if tiny else 2**32),
        }

    yield {"precision": "bf16"}, measure


PARTS = {
    "rates": rate_cells,
    "warm": warm_cells,
    "mfu": mfu_cells,
    "moe": moe_cells,
    "scan": scan_cells,
    "decode": decode_cells,
}


def run(cells: Iterable[Cell], deadline: float) -> None:
    """Print a row for each cell. Starts a cell only if the remaining time exceeds the longest so far."""
    longest = 0.0
    for about, measure in cells:
        began = time.perf_counter()
        if began + longest > deadline:
            row = {**about, "error": "no time left"}
        else:
            try:
                row = about | measure()
            except Exception as error:
                message = str(error).strip().partition("\n")[0]
                row = {**about, "error": f"{type(error).__name__}: {message}"}
            longest = max(longest, time.perf_counter() - began)
        print(json.dumps(row), flush=True)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def main() -> None:
    part, device, seconds = sys.argv[1:4]
    torch.manual_seed(0)
    run(PARTS[part](torch.device(device), "--tiny" in sys.argv), time.perf_counter() + float(seconds))


if __name__ == "__main__":
    main()
