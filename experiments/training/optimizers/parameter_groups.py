"""Common parts of all optimizers: groups of parameters, and classes without wrappers for the compiler."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Collection
from functools import cache
from typing import Any, TypeVar

import torch
from torch import nn

from archbench.experiments.config.optimizer import OptimizerConfig


def parameter_groups(
    model: nn.Module, config: OptimizerConfig, apart: Collection[int] | None = None
) -> list[dict[str, object]]:
    """Groups by decay, by learning-rate cap and by the factor of the rate.

    Decayed: tensors of two or more dimensions. Not decayed: norms, biases, skips
    and time steps (one dimension), and parameters with the attribute ``no_weight_decay``. A
    tensor may have ``learning_rate_cap``, the largest rate for it, and ``learning_rate_factor``,
    by which its rate is multiplied and its decay divided, as decay acts times the rate. Tensors that
    are sharded over different meshes are in separate groups;
    ``numbers`` are the indices of parameters in a single process, by which moments are saved.

    Args:
        apart: ids of parameters in separate groups. With it, even if it is empty, every group has a key
            ``apart``, True for these; with None no group has the key.
    """
    groups: dict[tuple[bool, float, float, bool], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        decayed = parameter.ndim >= 2 and not getattr(parameter, "no_weight_decay", False)
        cap = float(getattr(parameter, "learning_rate_cap", math.inf))
        factor = float(getattr(parameter, "learning_rate_factor", 1.0))
        is_apart = apart is not None and id(parameter) in apart
        groups.setdefault((decayed, cap, factor, is_apart), []).append(parameter)
    result: list[dict[str, object]] = []
    indices = itertools.count()
    for (decayed, cap, factor, is_apart), parameters in groups.items():
        by_mesh: dict[object, list[tuple[nn.Parameter, int]]] = {}
        for parameter in parameters:
            by_mesh.setdefault(getattr(parameter, "device_mesh", None), []).append((parameter, next(indices)))
        result += [
            {
                "params": [parameter for parameter, _ in part],
                "numbers": [index for _, index in part],
                "weight_decay": config.weight_decay / factor if decayed else 0.0,
                "peak": min(config.learning_rate * factor, cap),
                **({} if apart is None else {"apart": is_apart}),
            }
            for part in by_mesh.values()
        ]
    return result


Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)

WRAPPED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
"""Methods that PyTorch hides from ``torch.compile`` (``torch._disable_dynamo``). It also hides ``step``."""


@cache
def uncompiled(optimizer: type[Optimizer]) -> type[Optimizer]:
    """Return a class of PyTorch's optimizers for use outside of compiled functions.

    The wrappers import the compiler, with SymPy, on their first call: 0.7 seconds of the start of every run.
    The class computes what PyTorch's does; ``step`` runs without gradients, as there.
    """
    plain: dict[str, Any] = {name: inspect.unwrap(getattr(optimizer, name)) for name in WRAPPED}
    plain["step"] = torch.no_grad()(inspect.unwrap(optimizer.step))
    return type(optimizer.__name__, (optimizer,), plain)
