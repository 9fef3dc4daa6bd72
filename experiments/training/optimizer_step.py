"""Operations of a training step around ``optimizer.step``, which ``Trainer.train_step`` calls.

Before it: the learning rate of the step, the norm of the gradients, and their clipping. After it: the moving
average of the weights.

An exponential moving average (EMA) of a parameter is one of its moments in the optimizer, and is saved and
resumed with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from archbench.experiments.config.optimizer import OptimizerConfig, load_schedule
from archbench.experiments.training.parallel.collectives import is_dtensor, world_size


def learning_rate_factor(step: int, total: int, config: OptimizerConfig) -> float:
    """Return the learning rate at a step (counted from 0) of ``total``, as a fraction of its peak."""
    warmup = round(config.warmup_fraction * total)
    if step < warmup:
        return (step + 1) / warmup
    return load_schedule(config.schedule).factor(step, warmup, total, config)


def set_learning_rate(
    optimizer: torch.optim.Optimizer, step: int, total: int, config: OptimizerConfig
) -> float:
    """Set the learning rate of every parameter group for a step, and return the main one."""
    factor = learning_rate_factor(step, total, config)
    for group in optimizer.param_groups:
        group["lr"] = factor * group["peak"]
    return factor * config.learning_rate


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
    names, bad = [], []
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        local = gradient.to_local() if is_dtensor(gradient) else gradient
        names.append(name)
        bad.append(local is not None and not bool(local.isfinite().all()))
    anywhere = torch.tensor(bad).int()
    if world_size() > 1:
        dist.all_reduce(anywhere, dist.ReduceOp.MAX)
    return [name for name, is_bad in zip(names, anywhere.tolist(), strict=True) if is_bad]


AVERAGE = "average"
"""Key of a parameter's moving average among the optimizer's moments, with which it is saved and resumed."""


@torch.no_grad()
def update_average(optimizer: torch.optim.Optimizer, step: int, decay: float) -> None:
    """Move the averages towards the weights after a step (counted from 1); the first step creates them.

    The decay is at most (1 + step) / (10 + step), so that the average forgets where training began
    (Song et al. 2021, arXiv 2011.13456, and the published code of MDLM).
    """
    decay = min(decay, (1 + step) / (10 + step))
    for parameter in _trained(optimizer):
        moments = optimizer.state[parameter]
        if AVERAGE not in moments:
            moments[AVERAGE] = parameter.detach().clone()
        else:
            moments[AVERAGE].lerp_(parameter.detach(), 1 - decay)


def _trained(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Yield the parameters that have been updated.

    These are all parameters of an optimizer without moments. Other optimizers have moments of each parameter
    that has had a gradient, and take an average alone for moments: they would not create the others.
    """
    for part in getattr(optimizer, "parts", [optimizer]):
        parameters = [parameter for group in part.param_groups for parameter in group["params"]]
        with_moments = [p for p in parameters if part.state.get(p, {}).keys() - {AVERAGE}]
        yield from with_moments or parameters


@torch.no_grad()
def exchange_averages(optimizer: torch.optim.Optimizer) -> None:
    """Swap weights and averages; a second call swaps them back."""
    for parameter, moments in optimizer.state.items():
        if AVERAGE in moments:
            weights = parameter.detach().clone()
            parameter.copy_(moments[AVERAGE])
            moments[AVERAGE].copy_(weights)


@contextmanager
def averaged(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Replace the weights of the model by their averages, if there are any, in the block."""
    exchange_averages(optimizer)
    try:
        yield
    finally:
        exchange_averages(optimizer)
