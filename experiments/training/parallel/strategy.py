"""Wraps a model for training by multiple processes: PyTorch's DDP, FSDP2 and tensor parallelism.

Modules for multiple processes are imported where they are needed, because the import needs a second. A
backbone does not depend on any of this. Its blocks (``architectures.layers.block.Block``) are gathered and
recomputed one at a time.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from archbench.architectures.backbone import Backbone
from archbench.architectures.layers.block import Block
from archbench.experiments.objectives.objective import Objective, View
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.training.loss import Loss
from archbench.experiments.training.parallel.block_wrapping import (
    check_compiler,
    compile_block,
    recompute,
    wide_parameters,
)
from archbench.experiments.training.parallel.collectives import add_up, is_dtensor
from archbench.experiments.training.parallel.device_mesh import ParallelDims

if TYPE_CHECKING:
    from torch.distributed.tensor import Shard

ATTRIBUTES = ("no_weight_decay", "learning_rate_cap", "learning_rate_factor")
"""Attributes that a parameter has for the optimizer, and would lose when it is divided."""
LARGE = 2**20
"""Elements of a parameter from which it must not be padded to a row for each process."""
MOST_PADDED = 4
"""The most rows with padding, as a multiple of the rows; a byte embedding is padded to twice."""


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
            fill: gives such a model its initial weights, once it is divided; None leaves it unchanged.
            activation_checkpointing: ``parallel.activation_checkpointing``.
            compile_blocks: compile each block with ``torch.compile``.
            precision: ``device.precision``.

        Raises:
            ConfigError: the model cannot be divided among the processes in this way.
        """
        self.dims, self.model, self.objective = dims, model, objective
        self.low_precision = precision == "bf16"
        self.blocks = [part for part in model.modules() if isinstance(part, Block)]
        self._whole_names: list[str] = []
        attributes_of = {
            name: {key: getattr(parameter, key) for key in ATTRIBUTES if hasattr(parameter, key)}
            for name, parameter in model.named_parameters()
        }
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
            for attribute, value in attributes_of[name].items():
                setattr(parameter, attribute, value)

    def _compile(self, device: torch.device) -> None:
        """Compile the blocks: after activation checkpointing and before FSDP, as PyTorch advises."""
        check_compiler(device)
        for block in self.blocks:
            compile_block(block)
        if self.dims.experts is not None:
            from archbench.architectures.layers.moe.experts import Experts

            for layer in self.model.modules():
                if isinstance(layer, Experts):  # which tokens travel, and how many, depends on data
                    layer._routed = torch.compiler.disable(layer._routed)  # type: ignore[method-assign]

    def _parallelize_layers(self) -> None:
        """Divide layers by tensor parallelism and experts by expert parallelism."""
        try:
            if self.dims.mesh is not None and self.dims.tensor > 1:
                from archbench.experiments.training.parallel.tensor_parallel import parallelize_layers

                parallelize_layers(self.model, self.dims.mesh["tensor"])
            if self.dims.experts is not None:
                from archbench.architectures.layers.moe.expert_parallel import distribute_experts

                distribute_experts(self.model, self.dims.experts)
        except ValueError as error:
            raise ConfigError(f"parallel: {error}") from error

    def _expert_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters of experts, which are divided already and not by FSDP."""
        if self.dims.experts is None:
            return {}
        return {name: p for name, p in self.model.named_parameters() if is_dtensor(p.data)}

    def _fsdp(self) -> None:
        """Divide the blocks, and parameters outside of blocks.

        In bfloat16 the weights of products are gathered in it: autocast would round them to the same values.
        Other parameters of a block are needed in float32 (norms, time steps, decays, routers) and not
        divided. FSDP reduces all gradients of a block in one precision.
        """
        from torch.distributed.fsdp import (
            FSDPModule,
            MixedPrecisionPolicy,
            fully_shard,
            register_fsdp_forward_method,
        )

        parameters = dict(self.model.named_parameters())
        if self.low_precision:
            self._whole_names = wide_parameters(self.model, self.blocks)
        names = {parameter: name for name, parameter in parameters.items()}
        ignored = set(self._expert_parameters().values()) | {parameters[name] for name in self._whole_names}
        rounded = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        mesh = self.dims.sharding_mesh()  # a new object with each call, which takes milliseconds
        for part in [*self.blocks, self.model]:
            low = self.low_precision and part is not self.model
            fully_shard(
                part,
                mesh=mesh,
                shard_placement_fn=lambda each: self._division(names[each], each, parts=mesh.shape[-1]),
                mp_policy=rounded if low else MixedPrecisionPolicy(),
                ignored_params=ignored,
            )
            assert isinstance(part, FSDPModule)
            # Gradients are summed: the loss is already divided by the count of the full batch.
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)  # gloo knows no other way
            register_fsdp_forward_method(part, "step")
        register_fsdp_forward_method(self.model, "start")

    def _division(self, name: str, parameter: nn.Parameter, *, parts: int) -> Shard | None:
        """Return the dimension on which FSDP divides a parameter into parts; None for the first.

        A stack of 8 experts among 64 processes would be padded to 64 experts, and all of them sent: another
        dimension is divided, one that leaves no rest. Raises ConfigError where a large parameter has none.
        """
        from torch.distributed.tensor import Shard

        if is_dtensor(parameter.data) or len(parameter) >= parts:
            return None
        divisible = next((Shard(dim) for dim, size in enumerate(parameter.shape) if size % parts == 0), None)
        if divisible is None and parameter.numel() >= LARGE and parts > MOST_PADDED * len(parameter):
            even = max(math.gcd(parts, size) for size in parameter.shape)
            raise ConfigError(
                f"parallel=fsdp: {parts} processes cannot divide {name} {tuple(parameter.shape)} without "
                f"padding it to {parts} rows; with parallel.replicate={self.dims.replicate * parts // even} "
                f"groups of {even} divide it"
            )
        return divisible

    def _ddp(self) -> None:
        assert self.dims.data_group is not None
        ignored = [f"model.{name}" for name in self._expert_parameters()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self.loss, ignored)
        group = self.dims.data_group
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
        """Skip communication that is only needed after the last micro-batch of a step.

        DDP sums gradients only with the last one. FSDP divides them with each, for less memory, and sums
        its parts between replicas with the last.
        """
        if isinstance(self.loss, DistributedDataParallel) and not last:
            with self.loss.no_sync():
                yield
            return
        if self.dims.replicate > 1:
            from torch.distributed.fsdp import FSDPModule

            assert isinstance(self.model, FSDPModule)
            self.model.set_requires_all_reduce(last)
        yield

    @cached_property
    def whole_parameters(self) -> list[nn.Parameter]:
        """The parameters that fsdp does not divide. Read it only once the model has its weights."""
        return [self.model.get_parameter(name) for name in self._whole_names]

    def finish_gradients(self) -> None:
        """Reduce gradients that the backward pass did not: of experts in multiple processes, and of
        parameters that fsdp does not divide."""
        gradients = [p.grad for p in self.whole_parameters if p.grad is not None]
        if gradients:
            add_up([g.to_local() if is_dtensor(g) else g for g in gradients], self.dims.data_group)
        for parameter in self._expert_parameters().values():
            if is_dtensor(parameter) and is_dtensor(gradient := parameter.grad):
                parameter.grad = gradient.redistribute(placements=parameter.placements)

    def total(self, value: float) -> float:
        """Return the sum of a value over the parts of the batch."""
        if self.dims.mesh is None:
            return value
        total = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(total)
        return total.item() / self.dims.tensor

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Within it the model may be evaluated and may generate; weights are gathered block by block."""
        if self.dims.strategy != "fsdp":
            yield
            return
        from torch.distributed.fsdp import FSDPModule

        assert isinstance(self.model, FSDPModule)
        # Methods that read weights of a block outside its forward and step.
        reading: list[tuple[Block, nn.Module, str]] = []
        for block in self.blocks:
            reading.append((block, block, "start"))
            if (cross := getattr(block, "cross", None)) is not None:
                reading.append((block, cross, "read"))
        for block, part, name in reading:
            setattr(part, name, _gathering(block, getattr(part, name)))
        try:
            yield
        finally:
            for _, part, name in reading:
                delattr(part, name)
            self.model.reshard()  # what is in no block stays gathered after a pass


def _gathering(block: nn.Module, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a part of a block that gathers the weights of the block where they are divided."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if not any(is_dtensor(parameter.data) for parameter in block.parameters()):
            return method(*args, **kwargs)
        block.unshard()  # type: ignore[operator]
        try:
            return method(*args, **kwargs)
        finally:
            block.reshard()  # type: ignore[operator]

    return call


def _sum_gradients(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Sum gradients, where DDP would average: the loss is already divided by the full batch's count."""
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])
