"""Expert parallelism: each process holds some of the experts, and tokens travel to them and back.

Every process has different tokens, as in data parallelism. Their experts are
not known before routing, so first the processes exchange the counts of
tokens, then the tokens, in pieces of uneven sizes (GShard, arXiv
2006.16668; dropless as in MegaBlocks, arXiv 2211.15841).

Shapes: M pairs of a token and an expert, sorted by expert, D d_model, X experts,
P processes, L = X / P experts of one process.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from architectures.layers.moe.exchange import Exchange
from architectures.layers.moe.experts import BIASES, STACKS, Experts, expert_bias


def shard_experts(model: nn.Module, group: dist.ProcessGroup | None = None) -> list[nn.Parameter]:
    """Keep this process's part of the routed experts of a model, and connect the parts in ``group``.

    Returns the parameters that only this process has. After the backward pass their gradients are
    complete: sums over the tokens of all processes. Gradients of all other parameters, which every process
    has, must be summed as in data parallelism. Compute the costs of the model before.

    Args:
        model: with the same weights in every process.
        group: the processes; None for all.

    Raises:
        ValueError: the experts cannot be divided evenly, or run in a way that needs all of them.
    """
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    local_parameters: list[nn.Parameter] = []
    for layer in (part for part in model.modules() if isinstance(part, Experts)):
        c = layer.config
        if c.num_experts % size:
            raise ValueError(
                f"experts.num_experts={c.num_experts} cannot be shared out among {size} processes: "
                "make it a multiple of them"
            )
        if c.dispatch == "reference":
            raise ValueError("experts.dispatch=reference needs all experts in one process: use auto")
        local = c.num_experts // size
        for name in STACKS:
            full = getattr(layer, name)
            if full is not None:
                part = _part(name, full.detach()[rank * local : (rank + 1) * local].clone())
                setattr(layer, name, part)
                local_parameters.append(part)
        layer.exchange = Exchange(group)
    return local_parameters


def distribute_experts(model: nn.Module, mesh: DeviceMesh) -> None:
    """Divide the experts for training: they become the local parts of DTensors on the mesh.

    The optimizer, checkpoints and the norm of gradients then treat them as in a single process. After the
    backward pass their gradients are sums over the processes that share experts, and must still be summed
    (``redistribute``) over ``replica``.

    Args:
        mesh: of ``replica`` and ``expert``: processes that hold the same experts, and that share them.

    Raises:
        ValueError: there are no experts, or ``shard_experts`` raises.
    """
    shard_experts(model, mesh["expert"].get_group())
    layers = [part for part in model.modules() if isinstance(part, Experts)]
    if not layers:
        raise ValueError("expert: this model has no experts to share out, leave it 1")
    for layer in layers:
        for name in STACKS:
            part = getattr(layer, name)
            if part is not None:
                full = DTensor.from_local(part.detach(), mesh, [Replicate(), Shard(0)], run_check=False)
                setattr(layer, name, _part(name, full))


def _part(name: str, part: Tensor) -> nn.Parameter:
    """Return a part of the stack of such a name as a parameter."""
    return expert_bias(part) if name in BIASES else nn.Parameter(part)
