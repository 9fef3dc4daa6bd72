"""One training step under a layout of processes, on real tensors or on tensors without memory.

The model, its parallel strategy, objective and optimizer are those of training. What differs from it: of
multiple micro-batches two are computed, the first and the last, since those between equal the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from archbench.architectures.backbone import Backbone
from archbench.architectures.fast_paths import switched_off
from archbench.architectures.layers.moe.experts import Experts
from archbench.architectures.layers.ssm.selective_scan import gpu_chunks
from archbench.experiments.objectives.objective import View
from archbench.experiments.run.estimate.even_routing import route_evenly
from archbench.experiments.run.plan import Plan
from archbench.experiments.run.settings import Settings
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.simulate.traffic import Exchange, Links, Traffic, by_collective
from archbench.experiments.training.optimizer_step import clip_gradients, gradient_norm
from archbench.experiments.training.parallel.device_mesh import make_parallel_dims
from archbench.experiments.training.parallel.strategy import Strategy

PARTS = {
    "weights": ("Sharded Param", "Buffer"),
    "gathered weights": ("Unsharded Param", "All Gather"),
    "gradients": ("Sharded Grad", "Unsharded Grad", "Reduce Scatter"),
    "moments": ("OptState",),
    "activations": ("Activation", "Inputs"),
    "temporaries": ("Temp",),
}
"""Parts of the memory of a process, and their names in PyTorch's tracker."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A step of one of many processes."""

    processes: int
    layout: str
    micro_batches: int
    """Forward and backward passes of a step."""
    memory: dict[str, int]
    """Bytes by part at the peak of the step: a key for each of ``PARTS``."""
    exchanged: dict[Exchange, int]
    """Bytes of a step on each process, by collective and the processes that take part."""
    computing_seconds: float | None
    """Seconds of computing in a step at ``device.mfu`` of the GPU's peak; None if the peak is unknown."""
    exchanging_seconds: float | None
    """Seconds of exchanging in a step by the links of the GPU; None if they are unknown."""

    @property
    def traffic(self) -> dict[str, int]:
        """Return the bytes of a step by collective."""
        return dict(by_collective(self.exchanged))

    @property
    def peak(self) -> int:
        """Return the bytes at the peak."""
        return sum(self.memory.values())

    @property
    def seconds(self) -> dict[str, float | None]:
        """Return the seconds of a step by activity."""
        return {"computing": self.computing_seconds, "exchanging": self.exchanging_seconds}


def simulate(settings: Settings, plan: Plan, processes: int) -> Simulation:
    """Return a step of the process of rank 0, without memory for its tensors and without other processes.

    Compiled kernels (C++, mamba-ssm) are replaced by PyTorch's operations, which save more for the backward
    pass. Where the device sets a GPU's peak, Mamba's scan uses the chunk length of a GPU.

    Raises:
        ConfigError: the layout is impossible, or the step depends on data, as the routing of experts does.
    """
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    chunks = nullcontext() if settings.device.peak_flops is None else gpu_chunks()
    with _pretended_group(processes), switched_off("tensors of a simulation have no memory"), chunks:
        dims = make_parallel_dims(settings.parallel, "cpu", settings.budget)
        if dims.strategy == "ddp":  # PyTorch's DDP looks at values of the weights
            raise ConfigError(
                "parallel.strategy=ddp cannot be simulated: each process stores all weights, gradients and "
                "moments, and reduces all gradients once a step; choose parallel=fsdp"
            )
        model = plan.sizes.on_meta(settings.backbone_class, plan.matched.config)
        strategy = Strategy(
            dims,
            model,
            plan.objective,
            device=torch.device("cpu"),
            activation_checkpointing=settings.parallel.activation_checkpointing,
            compile_blocks=False,
            precision=settings.device.precision,
        )
        step = Step(settings, plan, model, strategy)
        route_evenly(model)
        undivided = _expert_bytes(model) if dims.experts is not None else 0
        try:
            with FakeTensorMode(allow_non_fake_inputs=True):
                model.to_empty(device="cpu")
                undivided += sum(parameter.nbytes for parameter in step.strategy.whole_parameters)
                step.make_optimizer()
                step.run()  # creates the moments, which the tracker would count as activations
                tracker = FSDPMemTracker(model, step.optimizer)
                micro_batch, final = Traffic(), Traffic()
                with tracker:
                    if step.micro_batches > 1:
                        with micro_batch:
                            step.backward(last=False)
                    with final:
                        step.run()
        except DataDependentOutputException:
            raise ConfigError(
                f"backbone={settings.names.backbone}: what a step computes depends on its data, such as the "
                "tokens that experts of a limited capacity drop: it cannot be simulated; "
                "backbone.experts.capacity_factor=null drops none"
            ) from None
        (peak,) = tracker.get_tracker_snapshot("peak").values()
        sizes = {str(getattr(key, "value", key)): size for key, size in peak.items()}
        memory = {part: sum(sizes.get(name, 0) for name in names) for part, names in PARTS.items()}
        memory["weights"] += undivided
        # The last micro-batch with the update, and each micro-batch before it.
        exchanged = dict(final.exchanged)
        for exchange, size in micro_batch.exchanged.items():
            exchanged[exchange] = exchanged.get(exchange, 0) + size * (step.micro_batches - 1)
        links = Links.of(settings.device, settings.parallel.gpus_per_node)
        return Simulation(
            processes=processes,
            layout=dims.describe(),
            micro_batches=step.micro_batches,
            memory=memory,
            exchanged=exchanged,
            computing_seconds=_computing_seconds(settings, plan, processes),
            exchanging_seconds=None if links is None else links.seconds(exchanged),
        )


class Step:
    """A model with its strategy and optimizer, and the rows of one micro-batch."""

    optimizer: torch.optim.Optimizer

    def __init__(self, settings: Settings, plan: Plan, model: Backbone, strategy: Strategy) -> None:
        self.settings, self.model, self.strategy = settings, model, strategy
        batch = settings.budget.batch_size
        rows = batch // strategy.dims.data
        requested = settings.budget.micro_batch_size
        assert not isinstance(requested, str), "make_parallel_dims rejects auto with multiple processes"
        micro = min(requested or rows, rows)
        self.micro_batches = -(-rows // micro)
        tokens = plan.task.batch("train", 0, 0, micro)
        self.view: View = plan.objective.view(tokens, torch.Generator().manual_seed(0))

    def make_optimizer(self) -> None:
        """Create the optimizer, once the model has its weights."""
        self.optimizer = self.settings.optimizer.build(self.model)

    def backward(self, *, last: bool) -> Tensor:
        """Accumulate the gradients of a micro-batch, and return its loss."""
        with self.strategy.accumulating(last=last):
            loss = self.strategy.loss(self.view, torch.tensor(1.0), len(self.view.tokens_BT))
            loss.backward()
        return loss.detach()

    def run(self) -> Tensor:
        """Compute the last micro-batch, update the weights, and return the loss."""
        loss = self.backward(last=True)
        self.strategy.finish_gradients()
        parameters = list(self.model.parameters())
        clip_gradients(parameters, self.settings.optimizer.clip_norm, gradient_norm(parameters))
        self.optimizer.step()
        self.model.after_step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss


def _computing_seconds(settings: Settings, plan: Plan, processes: int) -> float | None:
    """Return the seconds for the process's part of a step's FLOPs, with recomputed blocks."""
    device = settings.device
    if device.peak_flops is None:
        return None
    recompute = 4 / 3 if settings.parallel.activation_checkpointing == "block" else 1.0
    training = plan.cost.planned
    return recompute * training.flops / training.steps / processes / (device.mfu * device.peak_flops)


@contextmanager
def _pretended_group(processes: int) -> Iterator[None]:
    """Make this process rank 0 of ``processes`` in a fake group, in which collectives are no-ops."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=processes)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _expert_bytes(model: Backbone) -> int:
    """Return the bytes of this process's experts, which FSDP does not shard and the tracker omits."""
    layers = [layer for layer in model.modules() if isinstance(layer, Experts)]
    stacks: list[Tensor | None] = [
        stack for layer in layers for stack in (layer.gate_XFD, layer.up_XFD, layer.down_XDF)
    ]
    return sum(stack.to_local().nbytes for stack in stacks if isinstance(stack, DTensor))
