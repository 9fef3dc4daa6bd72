"""AdamW with the parameter groups each architecture asks for, and learning-rate schedules."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from experiments.config.schema import OptimizerConfig


def decayed_steps(total: int, config: OptimizerConfig) -> list[int]:
    """The steps, of ``total``, after which the rate is at its lowest: what a run can be stopped at."""
    return [max(1, round(share * total)) for share in config.decay_end_fractions]


def rate_at(step: int, total: int, config: OptimizerConfig) -> float:
    """The factor on the peak learning rate at a step (counted from 0) of ``total``."""
    warmup = round(config.warmup_fraction * total)
    if step < warmup:
        return (step + 1) / warmup
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "wsd":
        ends = decayed_steps(total, config)
        end = next(e for e in ends if step < e)
        before = max((e for e in ends if e <= step), default=0)
        start = max(before, end - max(1, round(config.decay_fraction * end)))
        if step < start:
            return 1.0
        return 1 - (1 - config.min_lr_ratio) * (step - start + 1) / (end - start)
    progress = (step - warmup + 1) / max(1, total - warmup)
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * progress))


def parameter_groups(model: nn.Module, config: OptimizerConfig) -> list[dict[str, object]]:
    """Groups by decay, by learning-rate cap and by the factor of the rate.

    Decayed: tensors of two or more dimensions. Not decayed: norms, biases, skips
    and time steps (one dimension), and whatever carries ``no_weight_decay``. A
    tensor may carry ``learning_rate_cap``, a rate it must not exceed, and ``learning_rate_factor``,
    by which its rate is multiplied and its decay divided, as decay acts times the rate. Tensors that
    are shared out among processes in different ways are groups of their own;
    ``numbers`` are those that parameters have in one process, by which moments are saved.
    """
    groups: dict[tuple[bool, float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        decayed = parameter.ndim >= 2 and not getattr(parameter, "no_weight_decay", False)
        cap = float(getattr(parameter, "learning_rate_cap", math.inf))
        factor = float(getattr(parameter, "learning_rate_factor", 1.0))
        groups.setdefault((decayed, cap, factor), []).append(parameter)
    found: list[dict[str, object]] = []
    number = itertools.count()
    for (decayed, cap, factor), parameters in groups.items():
        alike: dict[object, list[tuple[nn.Parameter, int]]] = {}
        for parameter in parameters:
            alike.setdefault(getattr(parameter, "device_mesh", None), []).append((parameter, next(number)))
        found += [
            {
                "params": [parameter for parameter, _ in part],
                "numbers": [number for _, number in part],
                "weight_decay": config.weight_decay / factor if decayed else 0.0,
                "peak": min(config.learning_rate * factor, cap),
            }
            for part in alike.values()
        ]
    return found


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        parameter_groups(model, config),
        lr=config.learning_rate,
        betas=(config.betas[0], config.betas[1]),
        eps=config.eps,
        fused=True,
    )


def set_rate(optimizer: torch.optim.Optimizer, step: int, total: int, config: OptimizerConfig) -> float:
    """Sets every group's rate for a step; returns the main rate."""
    factor = rate_at(step, total, config)
    for group in optimizer.param_groups:
        group["lr"] = factor * group["peak"]
    return factor * config.learning_rate


AVERAGE = "average"
"""Key of a parameter's moving average among the optimizer's moments, with which it is saved and resumed."""


@torch.no_grad()
def update_average(optimizer: torch.optim.Optimizer, step: int, decay: float) -> None:
    """Moves the averages towards the weights after a step (counted from 1); the first makes them.

    The decay is at most (1 + step) / (10 + step), so that the average forgets where training began
    (Song et al. 2021, arXiv 2011.13456, and the published code of MDLM).
    """
    decay = min(decay, (1 + step) / (10 + step))
    for parameter, moments in optimizer.state.items():
        if AVERAGE not in moments:
            moments[AVERAGE] = parameter.detach().clone()
        else:
            moments[AVERAGE].lerp_(parameter.detach(), 1 - decay)


@torch.no_grad()
def exchange_averages(optimizer: torch.optim.Optimizer) -> None:
    """Puts the averages in the place of the weights, and these in theirs; again, and all is as before."""
    for parameter, moments in optimizer.state.items():
        if AVERAGE in moments:
            kept = parameter.detach().clone()
            parameter.copy_(moments[AVERAGE])
            moments[AVERAGE].copy_(kept)


@contextmanager
def averaged(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Within it the model's weights are their averages, where there are any."""
    exchange_averages(optimizer)
    try:
        yield
    finally:
        exchange_averages(optimizer)
