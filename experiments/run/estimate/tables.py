"""The estimates of several cells as two tables: memory of each GPU, and what to ask a cluster for."""

from __future__ import annotations

from collections.abc import Sequence

import rich.table

from archbench.experiments.config.schema import DeviceConfig, ParallelConfig
from archbench.experiments.run.estimate.resources import GIB, Resources
from archbench.experiments.runtime.console import count, plain_table

Estimated = tuple[str, ParallelConfig, DeviceConfig, Resources]
"""Name of a cell, its sections, and what it takes."""
PARTS = ("weights", "moments", "gradients", "buffers", "activations", "recomputed", "logits")


def resource_tables(cells: Sequence[Estimated]) -> list[rich.table.Table]:
    """Return the tables. Heads and names of models that are too long are continued in the next line."""
    parts = ("weights", "moments", "grads", "gathered", "kept", "recomp.", "logits", "peak", "of")
    memory = plain_table("cell", *parts)
    heads = ("GPUs", "micro-batches", "GPU hours", "MFU", "hours", "checkpoints", "time limit")
    cluster = plain_table("cell", *heads)
    for name, parallel, device, found in cells:
        sizes = [_gib(getattr(found.memory, part)) for part in PARTS]
        memory.add_row(
            name, *sizes, _gib(found.peak), "?" if device.memory_gib is None else f"{device.memory_gib:g}"
        )
        hours = found.gpu_hours
        cluster.add_row(
            name,
            f"{parallel.nodes or 1} x {parallel.gpus_per_node or 1}",
            str(found.memory.micro_batches),
            "?" if hours is None else f"{hours:,.1f}",
            f"{device.mfu:.0%}",
            "?" if hours is None else f"{hours / found.processes:,.1f}",
            f"{count(found.disk)}B",
            found.time_limit or "?",
        )
    return [memory, cluster]


def too_large(cells: Sequence[Estimated]) -> list[str]:
    """Return a sentence for each cell whose peak is more than its GPU has, with what would save memory."""
    lines = []
    for name, _, device, found in cells:
        if device.memory_gib is None or found.peak is None or found.peak <= device.memory_gib * GIB:
            continue
        other = found.memory.peak(recompute=True)
        remedy = "more GPUs (parallel=fsdp), or a smaller budget.micro_batch_size"
        if not found.recompute and other is not None and other <= device.memory_gib * GIB:
            remedy = f"parallel.activation_checkpointing=block, {_gib(other)} GiB"
        lines.append(
            f"{name}: {_gib(found.peak)} GiB do not fit into the {device.memory_gib:g} GiB of a GPU: {remedy}"
        )
    return lines


def _gib(size: int | None) -> str:
    return "?" if size is None else f"{size / GIB:.2f}" if size < 100 * GIB else f"{size / GIB:.0f}"
