"""Time, memory and threads of a run on a CPU, estimated from its plan before a sweep shares a machine."""

from __future__ import annotations

from archbench.experiments.run.estimate.stand_in import with_stand_in
from archbench.experiments.run.plan import Plan, plan
from archbench.experiments.run.planned import Planned
from archbench.experiments.run.settings import Settings
from archbench.experiments.run.sweep_schedule import RunCost
from archbench.experiments.runtime.device import torch_device

PROCESS = 512 * 2**20
"""Bytes of a process that trains the smallest models: Python, PyTorch, data."""
KEPT, LOGITS = 28, 3
"""Numbers kept for each token, layer and channel until the backward pass, and for each logit.

Measured at 3M parameters, of seven families S4 keeps most (28); the others 8 to 22."""
FLOPS_PER_THREAD = 4e8
"""FLOPs of a forward and backward pass for each thread.

Measured with two threads instead of one: steps of 3e8 to 5e8 FLOPs become 1.0 to 1.6 times as fast, of 9e8
1.5, of 4e9 and more 1.7 to 1.9."""


def estimate_cost(settings: Settings) -> RunCost:
    """Return what a run takes. Builds no weights. Raises RunError where the run cannot be run_plan."""
    run_plan = plan(with_stand_in(settings)[0])
    return RunCost(
        flops=run_plan.cost.planned.flops,
        memory=process_memory(settings, run_plan),
        threads=settings.device.threads,
        useful_threads=useful_threads(settings, run_plan),
        on_gpu=torch_device(settings.device.name).type == "cuda",
        planned=Planned.of(settings, flops=run_plan.cost.planned.flops, steps=run_plan.cost.planned.steps),
    )


def process_memory(settings: Settings, run_plan: Plan) -> float:
    """Return the bytes of a process that trains on a CPU, at their peak."""
    setup, rows = run_plan.cost.setup, _micro_batch_size(settings)
    copies = 5 if settings.optimizer.ema is not None else 4  # weights, gradients, two moments
    channels = (setup.num_layers or 1) * (setup.d_model or 1)
    kept = KEPT * channels + LOGITS * run_plan.sizes.vocab_size
    tokens = rows * max(run_plan.sizes.length + run_plan.sizes.source_length, setup.sequence_length)
    return PROCESS + 4 * (copies * run_plan.cost.parameters.total + tokens * kept)


def useful_threads(settings: Settings, run_plan: Plan) -> int:
    """Return the most threads that a forward and backward pass of this size makes good use of."""
    work = run_plan.cost.planned
    passes = work.steps * settings.budget.batch_size / _micro_batch_size(settings)
    return max(1, round(work.flops / passes / FLOPS_PER_THREAD))


def _micro_batch_size(settings: Settings) -> int:
    asked = settings.budget.micro_batch_size
    return asked if isinstance(asked, int) else settings.budget.batch_size
