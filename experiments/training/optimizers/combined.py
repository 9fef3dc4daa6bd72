"""Multiple optimizers as one, each for some of the parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Combined(torch.optim.Optimizer):
    """Optimizers that share one list of groups and one state, so that checkpoints, schedules and averages see
    a single optimizer."""

    def __init__(self, parts: list[torch.optim.Optimizer]) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Give each part its groups and the common state."""
        start = 0
        for part in self.parts:
            end = start + len(part.param_groups)
            part.param_groups, part.state = self.param_groups[start:end], self.state
            start = end

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step of each part. There is no closure."""
        assert closure is None
        for part in self.parts:
            part.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()


PRODUCTS = (nn.Linear, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)
"""Layers of PyTorch whose matrices are factors of matrix products."""


def hidden_matrices(model: nn.Module) -> set[int]:
    """Return the ids of the matrices between embedding and head without a cap, and with weight decay.

    A tensor of two dimensions is such a matrix if it belongs to a layer of PyTorch that multiplies by it, or
    if its module lists it in ``low_precision_parameters``. Others are tables or filters.
    """
    products = {
        id(parameter)
        for part in model.modules()
        for name, parameter in part.named_parameters(recurse=False)
        if isinstance(part, PRODUCTS) or name in getattr(part, "low_precision_parameters", ())
    }
    ends = {
        id(parameter)
        for name in ("embedding", "head", "readout")
        if isinstance(part := getattr(model, name, None), nn.Module)
        for parameter in part.parameters()
    }
    return {
        id(parameter)
        for parameter in model.parameters()
        if parameter.ndim == 2
        and id(parameter) in products - ends
        and not getattr(parameter, "no_weight_decay", False)
        and not hasattr(parameter, "learning_rate_cap")
    }
