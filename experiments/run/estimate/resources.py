"""Memory of each GPU by part, GPU hours, disk and time limit of a run: what is asked of a cluster for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from archbench.architectures.backbone import Backbone
from archbench.architectures.layers.block import Block
from archbench.experiments.config.schema import AUTO
from archbench.experiments.run.estimate.activations import kept_activations
from archbench.experiments.run.plan import Plan
from archbench.experiments.run.settings import Settings

GIB = 2**30
FLOAT = 4
"""Bytes of a number in float32, as weights, gradients and moments are."""
SLACK = 1.25
"""Time asked for over the time run_plan: evaluations, checkpoints, the last batches of slow nodes."""
START_SECONDS = 900.0
"""Seconds a job needs before its first step, at most: modules, imports, compiling, opening data."""
ROUNDED_SECONDS = 600.0
"""Time limits are whole tens of minutes."""


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Bytes of each GPU, by part, at the peak of a step."""

    weights: int
    gathered: int
    """Weights of two blocks and of what is no block, where weights are divided among processes."""
    gradients: int
    moments: int
    activations: int | None
    """Activations kept for the backward pass, without logits; None where they depend on data."""
    recomputed: int | None
    """The same with ``parallel.activation_checkpointing=block``."""
    logits: int | None
    """Logits, what the loss keeps of them, and their gradient."""
    temporaries: int
    """Gradients of a block before they are added up, or of everything under ``ddp``."""
    micro_batches: int
    """Forward and backward passes of a step; after the first, gradients stay along with activations."""

    @property
    def buffers(self) -> int:
        """Bytes of what is gathered or copied for a moment."""
        return self.gathered + self.temporaries

    def peak(self, *, recompute: bool) -> int | None:
        """Return the largest sum; None where activations are not known."""
        kept = self.recomputed if recompute else self.activations
        if kept is None or self.logits is None:
            return None
        passing = kept + self.logits
        both = passing + self.gradients if self.micro_batches > 1 else max(passing, self.gradients)
        return self.weights + self.moments + self.buffers + both


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Resources of a cluster that a run needs."""

    processes: int
    memory: StepMemory
    recompute: bool
    """True where the settings recompute blocks."""
    seconds: float | None
    """Of training, at the stated share of the GPUs' peak; None where the peak is not stated."""
    disk: int
    """Bytes of the checkpoints that are kept, and of the one that is being written."""

    @property
    def gpu_hours(self) -> float | None:
        """GPU hours of training."""
        return None if self.seconds is None else self.seconds * self.processes / 3600

    @property
    def time_limit(self) -> str | None:
        """Time to ask SLURM for, as ``D-HH:MM:SS``; None where no peak is stated."""
        if self.seconds is None:
            return None
        asked = self.seconds * SLACK + START_SECONDS
        minutes = round(math.ceil(asked / ROUNDED_SECONDS) * ROUNDED_SECONDS) // 60
        days, minutes = divmod(minutes, 24 * 60)
        return f"{days}-{minutes // 60:02d}:{minutes % 60:02d}:00"

    @property
    def peak(self) -> int | None:
        """Bytes of each GPU at the peak of a step, under the run's settings."""
        return self.memory.peak(recompute=self.recompute)


def estimate(settings: Settings, run_plan: Plan, *, processes: int | None = None) -> Resources:
    """Return what a run takes. Builds no weights.

    Args:
        settings: of the run.
        run_plan: its plan.
        processes: of the run; None for those that ``parallel.nodes`` and ``parallel.gpus_per_node`` ask for.
    """
    processes = processes or settings.parallel.processes
    flops = run_plan.cost.planned.flops
    device = settings.device
    seconds = None if device.peak_flops is None else flops / (processes * device.mfu * device.peak_flops)
    model = run_plan.sizes.on_meta(settings.backbone_class, run_plan.matched.config)
    weights = FLOAT * sum(parameter.numel() for parameter in model.parameters())
    moments = _moment_bytes(settings, model) + (weights if settings.optimizer.ema is not None else 0)
    return Resources(
        processes=processes,
        memory=_step_memory(settings, run_plan, processes, model, moments),
        recompute=settings.parallel.activation_checkpointing == "block",
        seconds=seconds,
        disk=(settings.trainer.keep_checkpoints + 1) * (weights + moments),
    )


def _step_memory(
    settings: Settings, run_plan: Plan, processes: int, model: Backbone, moments: int
) -> StepMemory:
    """Return the parts; ``moments`` are the bytes of all, of which each process has its share."""
    total = sum(parameter.numel() for parameter in model.parameters())
    sharded = processes > 1 and (settings.parallel.strategy == "fsdp" or settings.parallel.tensor > 1)
    parts = max(1, processes // settings.parallel.replicate) if sharded else 1
    block, rest = _block_parameters(model, total)
    data = max(1, processes // settings.parallel.tensor)
    batch, asked = max(1, settings.budget.batch_size // data), settings.budget.micro_batch_size
    micro = min(batch, 1 if asked == AUTO else int(asked or batch))
    rounded = sharded and settings.device.precision == "bf16"
    kept = kept_activations(settings, run_plan, micro, rounded=rounded)
    # Buckets of ddp hold all gradients once more; fsdp has those of one block whole.
    copied = 0 if processes == 1 else block if sharded else total
    return StepMemory(
        weights=FLOAT * total // parts,
        gathered=2 * (2 if rounded else FLOAT) * block + FLOAT * rest if sharded else 0,
        gradients=FLOAT * total // parts,
        moments=moments // parts,
        activations=None if kept is None else kept.blocks,
        recomputed=None if kept is None else kept.recomputed,
        logits=None if kept is None else 2 * kept.logits,
        temporaries=FLOAT * copied,
        micro_batches=-(-batch // micro),
    )


def _block_parameters(model: Backbone, total: int) -> tuple[int, int]:
    """Return the parameters of the largest block, and of what is in none."""
    blocks = [part for part in model.modules() if isinstance(part, Block)]
    sizes = [sum(parameter.numel() for parameter in block.parameters()) for block in blocks]
    return max(sizes, default=0), total - sum(sizes)


def _moment_bytes(settings: Settings, model: Backbone) -> int:
    """Return the bytes that the optimizer keeps for all weights, asked of itself without memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        optimizer = settings.optimizer.build(model)
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()
        states = [value for state in optimizer.state.values() for value in state.values()]
        return sum(value.nbytes for value in states if isinstance(value, torch.Tensor))


def describe(found: Resources) -> dict[str, Any]:
    """Return the numbers as plain values, fit for JSON."""
    return {
        "processes": found.processes,
        "memory": vars(found.memory) | {"peak": found.peak},
        "gpu_hours": found.gpu_hours,
        "time_limit": found.time_limit,
        "disk": found.disk,
    }
