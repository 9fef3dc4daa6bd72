"""PyTorch's optimizers without the wrappers that keep ``torch.compile`` out of their methods."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, TypeVar

import torch

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
