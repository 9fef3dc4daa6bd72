"""Expert parallelism: each process holds some of the experts, and tokens travel to them and back.

Every process has tokens of its own, as in data parallelism. Which experts they
need is not known beforehand, so first the processes tell each other how many
tokens they send, then the tokens go, in pieces of uneven sizes (GShard, arXiv
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
    """Keep this process's part of the routed experts of a model, and join those of all in ``group``.

    Returns the parameters that this process alone holds. After the backward pass their gradients are
    whole, sums over the tokens of all processes; those of all other parameters, which every process has,
    are to be added up as in data parallelism. Ask the model for its costs before.

    Args:
        model: with the same weights in every process.
        group: the processes; None for all.

    Raises:
        ValueError: the experts cannot be shared out evenly, or run in a way that needs all of them.
    """
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    own: list[nn.Parameter] = []
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
            whole = getattr(layer, name)
            if whole is not None:
                part = _part(name, whole.detach()[rank * local : (rank + 1) * local].clone())
                setattr(layer, name, part)
                own.append(part)
        layer.exchange = Exchange(group)
    return own


def distribute_experts(model: nn.Module, mesh: DeviceMesh) -> None:
    """Divide the experts for training: they become the parts of tensors that are whole on the mesh.

    So the optimizer, checkpoints and the norm of gradients see what they see in one process. After the
    backward pass their gradients are sums over the processes that share experts, yet to be added up
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
                whole = DTensor.from_local(part.detach(), mesh, [Replicate(), Shard(0)], run_check=False)
                setattr(layer, name, _part(name, whole))


def _part(name: str, part: Tensor) -> nn.Parameter:
    """Return a part of the stack of such a name as a parameter."""
    return expert_bias(part) if name in BIASES else nn.Parameter(part)
