"""AdamW with the parameter groups each architecture asks for, and learning-rate schedules."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

from experiments.errors import nearest

SCHEDULES = ("cosine", "wsd", "constant")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW (Loshchilov and Hutter 2019) and its schedule; the same family for every arm."""

    learning_rate: float = 3e-3
    """Peak learning rate."""
    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])
    """Decay rates of the two moments."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.1
    """Decoupled decay of matrices; norms, biases and what a backbone exempts are not decayed."""
    clip_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    schedule: str = "cosine"
    """After the warm-up: ``cosine`` to the end, ``wsd`` (stable, then linear decay), or ``constant``."""
    warmup: float = 0.05
    """Share of the steps over which the rate rises linearly from zero."""
    decay: float = 0.2
    """Share of the steps over which ``wsd`` decays."""
    final: float = 0.1
    """Share of the peak rate at the last step."""
    mup_base_width: int | None = None
    """Width at which the other settings were chosen: they are transferred to ``backbone.d_model`` by muP
    (``experiments/mup.py``). Null trains every width alike."""
    ema: float | None = None
    """Decay of a moving average of the weights, such as 0.9999; evaluations and whatever is made of a
    checkpoint then use the average. It forgets faster in the first steps. Null evaluates the weights."""

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule={self.schedule!r}{nearest(self.schedule, SCHEDULES)}")
        if self.learning_rate <= 0 or self.clip_norm <= 0 or self.eps <= 0 or self.weight_decay < 0:
            raise ValueError(
                f"learning_rate={self.learning_rate}, clip_norm={self.clip_norm} and eps={self.eps} must be "
                f"positive, weight_decay={self.weight_decay} not negative"
            )
        if len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas):
            raise ValueError(f"betas={list(self.betas)} must be two numbers in [0, 1)")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"ema={self.ema} must lie between 0 and 1, or be null")
        if self.mup_base_width is not None and self.mup_base_width < 1:
            raise ValueError(f"mup_base_width={self.mup_base_width} must be positive, or null")
        for name in ("warmup", "decay", "final"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} is a share: it must lie in [0, 1]")


def rate_at(step: int, total: int, config: OptimizerConfig) -> float:
    """The factor on the peak learning rate at a step (counted from 0) of ``total``."""
    warmup = round(config.warmup * total)
    if step < warmup:
        return (step + 1) / warmup
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "wsd":
        start = total - max(1, round(config.decay * total))
        if step < start:
            return 1.0
        return 1 - (1 - config.final) * (step - start + 1) / (total - start)
    progress = (step - warmup + 1) / max(1, total - warmup)
    return config.final + (1 - config.final) * 0.5 * (1 + math.cos(math.pi * progress))


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
