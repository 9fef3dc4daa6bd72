"""AdamW with the parameter groups that each architecture asks for."""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn

from experiments.config.schema import OptimizerConfig


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
