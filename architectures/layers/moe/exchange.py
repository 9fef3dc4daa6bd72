"""The exchange of tokens between processes that hold different experts: there, and back.

Shapes: M pairs of a token and an expert, sorted by expert, D d_model, X experts, P processes, L = X / P
experts of one process.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from architectures.layers.moe.dispatch import Run, Weights


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
    """This process's experts; what is not shared out is itself.

    Gradients of other processes that have the same experts are yet to be added.
    """
    if not hasattr(weight, "to_local"):
        return weight
    # A second of imports that pricing a model does without.
    from torch.distributed.tensor import Partial, Shard

    return weight.to_local(grad_placements=[Partial(), Shard(0)])
