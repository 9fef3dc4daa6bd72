"""Groups of parameters by what an architecture asks of its optimizer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection

from torch import nn

from experiments.config.optimizer import OptimizerConfig


def parameter_groups(
    model: nn.Module, config: OptimizerConfig, apart: Collection[int] | None = None
) -> list[dict[str, object]]:
    """Groups by decay, by learning-rate cap and by the factor of the rate.

    Decayed: tensors of two or more dimensions. Not decayed: norms, biases, skips
    and time steps (one dimension), and whatever carries ``no_weight_decay``. A
    tensor may carry ``learning_rate_cap``, a rate it must not exceed, and ``learning_rate_factor``,
    by which its rate is multiplied and its decay divided, as decay acts times the rate. Tensors that
    are shared out among processes in different ways are groups of their own;
    ``numbers`` are those that parameters have in one process, by which moments are saved.

    Args:
        apart: ids of parameters that have groups of their own, which say so under ``apart``; None for none.
    """
    groups: dict[tuple[bool, float, float, bool], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        decayed = parameter.ndim >= 2 and not getattr(parameter, "no_weight_decay", False)
        cap = float(getattr(parameter, "learning_rate_cap", math.inf))
        factor = float(getattr(parameter, "learning_rate_factor", 1.0))
        own = apart is not None and id(parameter) in apart
        groups.setdefault((decayed, cap, factor, own), []).append(parameter)
    found: list[dict[str, object]] = []
    number = itertools.count()
    for (decayed, cap, factor, own), parameters in groups.items():
        alike: dict[object, list[tuple[nn.Parameter, int]]] = {}
        for parameter in parameters:
            alike.setdefault(getattr(parameter, "device_mesh", None), []).append((parameter, next(number)))
        found += [
            {
                "params": [parameter for parameter, _ in part],
                "numbers": [number for _, number in part],
                "weight_decay": config.weight_decay / factor if decayed else 0.0,
                "peak": min(config.learning_rate * factor, cap),
                **({} if apart is None else {"apart": own}),
            }
            for part in alike.values()
        ]
    return found
