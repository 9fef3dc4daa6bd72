"""Wraps a model for training by several processes: PyTorch's DDP, FSDP2 and tensor parallelism.

What only several processes need is imported where they need it, for that takes a second. A backbone knows
nothing of it all. Its blocks (``architectures.layers.block.Block``) are what is gathered and
computed again one at a time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from architectures.backbone import Backbone
from architectures.layers.block import Block
from experiments.objectives.objective import Objective, View
from experiments.runtime.errors import ConfigError
from experiments.training.loss import Loss
from experiments.training.parallel.block_wrapping import check_compiler, compile_block, recompute
from experiments.training.parallel.device_mesh import ParallelDims
from experiments.training.parallel.dtensors import is_dtensor

ATTRIBUTES = ("no_weight_decay", "learning_rate_cap", "learning_rate_factor")
"""Attributes that a parameter has for the optimizer, and would lose when it is divided."""


class Strategy:
    """Prepares a model, in place, to be trained by the processes of ``dims``. Make the optimizer after it."""

    def __init__(
        self,
        dims: ParallelDims,
        model: Backbone,
        objective: Objective,
        *,
        device: torch.device,
        activation_checkpointing: str,
        compile_blocks: bool,
        precision: str,
        fill: Callable[[], None] | None = None,
    ) -> None:
        """Wrap the model for the processes of ``dims``.

        Args:
            model: may be without memory, on the meta device.
            device: where it is trained.
            fill: gives such a model its initial weights, once it is divided; None leaves it as it is.
            activation_checkpointing: ``parallel.activation_checkpointing``.
            compile_blocks: compile each block with ``torch.compile``.
            precision: ``device.precision``.

        Raises:
            ConfigError: the model cannot be divided among the processes in this way.
        """
        self.dims, self.model, self.objective = dims, model, objective
        self.blocks = [part for part in model.modules() if isinstance(part, Block)]
        kept = {name: _attributes(parameter) for name, parameter in model.named_parameters()}
        self._parallelize_layers()
        if activation_checkpointing == "block":
            for block in self.blocks:
                recompute(block)
        if compile_blocks:
            self._compile(device)
        self.loss: nn.Module = Loss(model, objective, precision)
        if dims.strategy == "fsdp":
            self._fsdp()
        if fill is not None:
            fill()
        if dims.strategy == "ddp":
            self._ddp()
        for name, parameter in model.named_parameters():
            for attribute, value in kept[name].items():
                setattr(parameter, attribute, value)

    def _compile(self, device: torch.device) -> None:
        """Compile the blocks: after activation checkpointing and before FSDP, as PyTorch advises."""
        for name, parts in (("tensor", self.dims.tensor), ("expert", self.dims.expert)):
            if parts > 1:
                raise ConfigError(
                    f"trainer.compile=blocks does not go with parallel.{name}={parts}: leave one"
                )
        check_compiler(device)
        for block in self.blocks:
            compile_block(block)

    def _parallelize_layers(self) -> None:
        """Divide layers by tensor parallelism and experts by expert parallelism."""
        try:
            if self.dims.mesh is not None and self.dims.tensor > 1:
                from experiments.training.parallel.tensor_parallel import parallelize_layers

                parallelize_layers(self.model, self.dims.mesh["tensor"])
            if self.dims.experts is not None:
                from architectures.layers.moe.expert_parallel import distribute_experts

                distribute_experts(self.model, self.dims.experts)
        except ValueError as error:
            raise ConfigError(f"parallel: {error}") from error

    def _expert_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters of experts, which are divided already and not by FSDP."""
        if self.dims.experts is None:
            return {}
        return {name: p for name, p in self.model.named_parameters() if is_dtensor(p.data)}

    def _fsdp(self) -> None:
        from torch.distributed.fsdp import FSDPModule, fully_shard

        assert self.dims.mesh is not None
        own = set(self._expert_parameters().values())
        for part in [*self.blocks, self.model]:
            fully_shard(part, mesh=self.dims.mesh["data"], ignored_params=own)
            assert isinstance(part, FSDPModule)
            # Gradients are summed: the loss is divided by the whole batch's count already.
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)  # gloo knows no other way

    def _ddp(self) -> None:
        assert self.dims.mesh is not None
        ignored = [f"model.{name}" for name in self._expert_parameters()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self.loss, ignored)
        group = self.dims.mesh["data"].get_group()
        with warnings.catch_warnings():
            # The name that is to replace broadcast_buffers is not known to every PyTorch we run on.
            warnings.simplefilter("ignore", FutureWarning)
            # A head that a readout replaces has no gradient, which DDP has to look for.
            self.loss = DistributedDataParallel(
                self.loss, process_group=group, broadcast_buffers=False, find_unused_parameters=True
            )
        self.loss.register_comm_hook(group, lambda group, bucket: _sum_gradients(group, bucket))

    def rows(self, view: View) -> View:
        """Return the rows of a batch that this process trains on."""
        rows = len(view.tokens_BT) // self.dims.data
        return view.rows(self.dims.data_rank * rows, (self.dims.data_rank + 1) * rows)

    @contextmanager
    def accumulating(self, last: bool) -> Iterator[None]:
        """Around a micro-batch: DDP adds gradients up with the last one only, FSDP with each: less memory."""
        if isinstance(self.loss, DistributedDataParallel) and not last:
            with self.loss.no_sync():
                yield
        else:
            yield

    def finish_gradients(self) -> None:
        """Reduce what the backward pass did not: gradients of experts that several processes hold."""
        for parameter in self._expert_parameters().values():
            if is_dtensor(parameter) and is_dtensor(gradient := parameter.grad):
                parameter.grad = gradient.redistribute(placements=parameter.placements)

    def total(self, value: float) -> float:
        """Return the sum of a number over the parts of the batch."""
        if self.dims.mesh is None:
            return value
        found = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(found)
        return found.item() / self.dims.tensor

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Within it every process holds all weights, and may use the model or not."""
        if self.dims.strategy != "fsdp":
            yield
            return
        from torch.distributed.fsdp import FSDPModule

        parts = [part for part in self.model.modules() if isinstance(part, FSDPModule)]
        for part in parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        try:
            yield
        finally:
            for part in parts:
                part.reshard()
                part.set_reshard_after_forward(part is not self.model, recurse=False)


def _attributes(parameter: nn.Parameter) -> dict[str, Any]:
    return {name: getattr(parameter, name) for name in ATTRIBUTES if hasattr(parameter, name)}


def _sum_gradients(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Sum gradients, where DDP would average: the loss is divided by the whole batch's count already."""
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])
