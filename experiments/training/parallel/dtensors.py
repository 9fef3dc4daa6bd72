"""Tensors divided among processes (DTensor): sums and gradient norms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn

from experiments.training.parallel.collectives import world_size

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_dtensor(tensor: Tensor | None) -> TypeGuard[DTensor]:
    """Return True for a tensor divided among processes. A single process need not import DTensor."""
    if not dist.is_initialized():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def add_up(tensors: list[Tensor], group: dist.ProcessGroup | None) -> None:
    """Add tensors of one type up over a group of processes, in place and in one message."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat, group=group)
    for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(total.view_as(tensor))


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return the norm of all gradients together, over all processes."""
    norms = []
    for parts in _alike(parameters):
        norm = nn.utils.get_total_norm([p.grad for p in parts if p.grad is not None])
        norms.append(norm.full_tensor() if is_dtensor(norm) else norm)
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float | None, norm: Tensor) -> None:
    """Scale all gradients, whose total norm is given, down to ``limit``; None leaves them unchanged."""
    if limit is None:
        return
    for parts in _alike(parameters):
        nn.utils.clip_grads_with_norm_(parts, limit, norm)


def _alike(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Group the parameters that have gradients by how they are divided among processes."""
    used = [parameter for parameter in parameters if parameter.grad is not None]
    if not dist.is_initialized():
        return [used] if used else []
    groups: dict[object, list[nn.Parameter]] = {}
    for parameter in used:
        gradient = parameter.grad
        cut = (gradient.device_mesh, gradient.placements) if is_dtensor(gradient) else None
        groups.setdefault(cut, []).append(parameter)
    return list(groups.values())


def not_finite_gradients(model: nn.Module) -> list[str]:
    """Return the parameters with gradients that are not finite in any process. All processes must call it."""
    parameters = dict(model.named_parameters())
    bad = torch.tensor([_bad(parameter.grad) for parameter in parameters.values()]).int()
    if world_size() > 1:
        dist.all_reduce(bad, dist.ReduceOp.MAX)
    return [name for name, is_bad in zip(parameters, bad.tolist(), strict=True) if is_bad]


def _bad(gradient: Tensor | None) -> bool:
    if gradient is None:
        return False
    local = gradient.to_local() if is_dtensor(gradient) else gradient
    return not bool(local.isfinite().all())
