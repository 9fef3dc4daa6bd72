"""Measure a cell of a benchmark in a separate process.

``python -m archbench.experiments.benchmark.worker`` reads a JSON object from standard input (``backbone``,
``objective``, ``device`` and ``cell``, as ``experiments.benchmark`` writes them) and prints the measurement
as the last line of its standard output.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import torch

from archbench.architectures import fast_paths
from archbench.architectures.backbone import Backbone
from archbench.experiments.benchmark.infilling import Blanks, Sampler
from archbench.experiments.benchmark.memory_limit import limited
from archbench.experiments.benchmark.timing import matmul_rate, memory_rate, quartiles
from archbench.experiments.benchmark.workloads import Cell, CellConfig, Measured
from archbench.experiments.config.schema import DeviceConfig
from archbench.experiments.config.structured import component, typed
from archbench.experiments.objectives.diffusion.unmasking_sampler import UnmaskingObjective
from archbench.experiments.runtime.child_processes import end_with_parent
from archbench.experiments.runtime.device import configure_process, torch_device
from archbench.experiments.runtime.memory import peak_memory
from archbench.experiments.tracking.provenance import current_commit, device_used


def measure(tree: dict[str, Any]) -> dict[str, Any]:
    """Measure the columns of one cell. Raises ConfigError, MemoryError and exceptions of PyTorch."""
    cls, config = component(tree, "backbone", Backbone)  # type: ignore[type-abstract]
    chosen, cell = typed(DeviceConfig, tree["device"], "device"), typed(CellConfig, tree["cell"], "")
    device = torch_device(chosen.name)
    configure_process(threads=chosen.threads, kernels=chosen.kernels)
    fast_paths.problem()  # builds the kernels first, because a compiler needs memory
    base = peak_memory(device)
    with limited(device, cell.memory_limit):
        torch.manual_seed(0)
        model = cls(config, vocab_size=cell.vocab_size, max_length=cell.max_length).to(device)
        work = Cell(model, cell, device, chosen.precision)
        if cell.mode == "sample":
            form, settings = component(tree, "objective", UnmaskingObjective)  # type: ignore[type-abstract]
            objective = form(settings, Blanks(cell.vocab_size))
            work = Sampler(model, cell, device, chosen.precision, objective)
        measured = work.measure()
    peak = peak_memory(device)
    if cell.trial:
        return {"peak_memory_bytes": peak}
    # Last, so that what they need is not in the peak.
    dtype = torch.bfloat16 if chosen.precision == "bf16" else torch.float32
    rates = matmul_rate(device, dtype), memory_rate(device, measured.least_bytes)
    used, (commit, dirty) = device_used(device, chosen.precision), current_commit()
    return {
        **speeds(measured, cell, *rates),
        "state_bytes": measured.state_bytes,
        "state_formula_bytes": measured.state_formula_bytes,
        "peak_memory_bytes": peak,
        "base_memory_bytes": base,
        "kernels": json.dumps(work.kernels()),
        "device": used.name,
        "processor": used.processor,
        "threads": used.threads,
        "torch": str(torch.__version__),
        "commit": commit,
        "dirty": dirty,
    } | {f"parameters_{k}": v for k, v in asdict(model.parameters_by_part()).items() if k != "inactive"}


def speeds(measured: Measured, cell: CellConfig, matmul: float, memory: float) -> dict[str, Any]:
    """Times, and the fractions reached of ``matmul`` FLOP/s and, where memory is the bottleneck, of
    ``memory`` bytes/s."""
    low, median, high = quartiles(measured.times)
    moved = measured.least_bytes if cell.mode in ("decode", "sample") else None
    return {
        "seconds_median": median,
        "seconds_first_quartile": low,
        "seconds_third_quartile": high,
        "repeats": len(measured.times),
        "warmup_repeats": len(measured.warmup),
        "stable": measured.stable,
        "tokens": measured.tokens,
        "tokens_per_second": measured.tokens / median,
        "passes": measured.passes,
        "committed_tokens": measured.tokens if cell.mode == "sample" else None,
        "seconds_per_text": median / cell.batch_size if cell.mode == "sample" else None,
        "flops": measured.flops,
        "flops_per_second": measured.flops / median,
        "matmul_flops_per_second": matmul,
        "matmul_share": share(measured.flops / median, matmul),
        "least_bytes": measured.least_bytes,
        "bytes_per_token": None if moved is None else moved / measured.tokens,
        "memory_bytes_per_second": memory,
        "memory_share": None if moved is None else share(moved / median, memory),
    }


def share(reached: float, rate: float) -> float | None:
    """None above 1: then other work disturbed the measurement of the rate."""
    return reached / rate if reached <= rate else None


if __name__ == "__main__":
    end_with_parent()
    print(json.dumps(measure(json.load(sys.stdin))))
