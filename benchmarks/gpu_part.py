"""One part of the GPU measurements, in a process of its own: ``gpu_part.py mfu cuda 600 [--tiny]``.

Prints a JSON object for each row as soon as it is known. What fails is a row with an ``error``, and the
next one is tried; what there is no time left for says so.

The backbones and PyTorch are all it needs: neither Hydra nor W&B nor pandas.
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

from experiments.benchmark import timing
from experiments.benchmark.timing import matmul_rate, memory_rate

Cell = tuple[dict[str, Any], Callable[[], dict[str, Any]]]
"""What a row is about, and what measures it."""


def rate_cells(device: torch.device, tiny: bool) -> Iterable[Cell]:
    """What this device reaches at all."""

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
    """Prints a row for each cell. One is begun while there is more time left than the longest took."""
    longest = 0.0
    for about, measure in cells:
        began = time.perf_counter()
        if began + longest > deadline:
            row = {**about, "error": "no time left"}
        else:
            try:
                row = about | measure()
            except Exception as error:
                said = str(error).strip().partition("\n")[0]
                row = {**about, "error": f"{type(error).__name__}: {said}"}
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
