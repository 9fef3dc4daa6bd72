"""Tensor parallelism: heads of attention and hidden units of feed-forwards, divided among processes.

The first projections are divided by columns, the last by rows (Shoeybi et al. 2019, arXiv
1909.08053), through PyTorch's ``parallelize_module``. Canon layers of the divided channels are divided with
them. Everything else is replicated.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from archbench.architectures.layers.attention.forgetting import ForgettingAttention
from archbench.architectures.layers.attention.multi_head import Attention
from archbench.architectures.layers.block import FeedForward, Mixer
from archbench.architectures.layers.canon import Canon
from archbench.architectures.layers.feedforward import DenseFeedForward
from archbench.architectures.layers.positions import ALiBi, RelativePositionBias


def parallelize_layers(model: nn.Module, mesh: DeviceMesh) -> None:
    """Cuts the layers of a transformer. Raises ValueError, before anything is changed, for what cannot be."""
    for part in model.modules():
        _check(part, mesh.size())
    for part in list(model.modules()):
        if isinstance(part, Attention):
            gates = () if part.gate is None else ("gate",)
            if isinstance(part, ForgettingAttention):
                gates = (*gates, "forget")
            _cut(part, ("q", "k", "v", *gates), "out", mesh)
        elif isinstance(part, DenseFeedForward):
            _cut(part, ("up",) if part.gate is None else ("gate", "up"), "down", mesh)


def _cut(
    part: Attention | DenseFeedForward, column_names: tuple[str, ...], row_name: str, mesh: DeviceMesh
) -> None:
    plan: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in column_names}
    parallelize_module(part, mesh, plan | {row_name: RowwiseParallel()})
    for canon in part.canon.values():
        assert isinstance(canon, Canon)
        canon.weight = nn.Parameter(distribute_tensor(canon.weight.detach(), mesh, [Shard(0)]))


def _check(part: nn.Module, size: int) -> None:
    """Raises ValueError for a layer that cannot be cut into ``size``."""
    if isinstance(part, ALiBi | RelativePositionBias):
        raise ValueError("tensor: positions.kind=alibi and relative have a bias for each head: use rope")
    if isinstance(part, Attention):
        c = part.config
        if part.num_heads % size or part.num_kv_heads % size:
            raise ValueError(
                f"tensor={size} does not divide attention.num_heads={part.num_heads} and "
                f"num_kv_heads={part.num_kv_heads}"
            )
        off = {"qk_norm": "none", "sinks": False, "value_residual": False, "differential": False}
        for name, value in off.items():
            if getattr(c, name) != value:
                raise ValueError(
                    f"tensor: weights of attention.{name} are not divided with the heads: "
                    f"use {name}={str(value).lower()}"
                )
    elif isinstance(part, DenseFeedForward):
        if part.up.out_features % size:
            raise ValueError(
                f"tensor={size} does not divide a feed-forward of {part.up.out_features}: give backbone.d_ff "
                "a multiple of it, with scale.targets=null where the solver chose it"
            )
    elif isinstance(part, Mixer | FeedForward):
        raise ValueError(
            f"tensor={size}: {type(part).__name__} cannot be cut, only attention and dense feed-forwards; "
            "use parallel.tensor=1"
        )
