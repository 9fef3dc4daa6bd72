"""Expert parallelism: each process holds some of the experts, and tokens travel to them and back.

Every process has different tokens, as in data parallelism. Their experts are
not known before routing, so first the processes exchange the counts of
tokens, then the tokens, in pieces of uneven sizes (GShard, arXiv
2006.16668; dropless as in MegaBlocks, arXiv 2211.15841).

Shapes: M pairs of a token and an expert, sorted by expert, D d_model, X experts,
P processes, L = X / P experts of one process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from archbench.architectures.layers.moe.dispatch import Run, Weights
from archbench.architectures.layers.moe.experts import BIASES, STACKS, Experts, expert_bias

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Exchange:
    """Runs sorted tokens where their experts are."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group

    def __call__(self, run: Run) -> Run:
        """``run`` over the experts of all processes."""

        def everywhere(x_MD: Tensor, counts_X: Tensor, weights: Weights) -> Tensor:
            size = dist.get_world_size(self.group)
            sent_PL = counts_X.view(size, -1)
            received_PL = torch.empty_like(sent_PL)
            dist.all_to_all_single(received_PL, sent_PL.contiguous(), group=self.group)
            sizes = self.sizes(sent_PL, received_PL, len(x_MD))
            x_MD = _AllToAll.apply(x_MD, *sizes, self.group)
            # They arrive sorted by process and then by expert; experts need them sorted by expert.
            expert_L = torch.arange(received_PL.shape[1], device=x_MD.device)
            expert_M = torch.repeat_interleave(
                expert_L.repeat(size), received_PL.flatten(), output_size=sum(sizes[1])
            )
            order_M = expert_M.argsort(stable=True)
            local_weights = Weights(*(_local(part) for part in weights))
            y_MD = run(x_MD[order_M], received_PL.sum(0), local_weights)
            y_MD = y_MD[order_M.argsort()]
            return _AllToAll.apply(y_MD, *reversed(sizes), self.group)

        return everywhere

    def sizes(self, sent_PL: Tensor, received_PL: Tensor, pairs: int) -> tuple[list[int], list[int]]:
        """Return how many of ``pairs`` go to each process, and how many come from each: the host waits."""
        return sent_PL.sum(1).tolist(), received_PL.sum(1).tolist()


class _AllToAll(torch.autograd.Function):
    """Rows to every process, the first to the first; in the backward pass their gradients come back."""

    @staticmethod
    def forward(
        ctx: Any, x_MD: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup | None
    ) -> Tensor:
        ctx.sizes, ctx.group = (sent, received), group
        y_MD = x_MD.new_empty(sum(received), x_MD.shape[1])
        dist.all_to_all_single(y_MD, x_MD.contiguous(), received, sent, group=group)
        return y_MD

    @staticmethod
    def backward(ctx: Any, gradient_MD: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        sent, received = ctx.sizes
        back_MD = gradient_MD.new_empty(sum(sent), gradient_MD.shape[1])
        dist.all_to_all_single(back_MD, gradient_MD.contiguous(), sent, received, group=ctx.group)
        return back_MD, None, None, None


def _local(weight: Any) -> Any:
    """Return the experts of this process; a tensor that is not divided is returned unchanged.

    Gradients of other processes that have the same experts are yet to be added.
    """
    if not hasattr(weight, "to_local"):
        return weight
    # The import takes a second, and computing the cost of a model does not need it.
    from torch.distributed.tensor import Partial, Shard

    return weight.to_local(grad_placements=[Partial(), Shard(0)])


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
    from torch.distributed.tensor import DTensor, Replicate, Shard

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
