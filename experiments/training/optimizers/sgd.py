"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from archbench.experiments.config.optimizer import OptimizerConfig
from archbench.experiments.training.optimizers.parameter_groups import parameter_groups, uncompiled

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class SGD(OptimizerConfig):
    """SGD. Its decay is added to the gradient, and so passes through the momentum."""

    momentum: float = 0.9
    """Decay rate of the sum of gradients; 0 for none."""
    nesterov: bool = False
    """Nesterov's momentum: the gradient is looked up ahead."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum} must be in [0, 1)")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov=true needs momentum above 0")

    def build(self, model: nn.Module) -> torch.optim.Optimizer:

        groups = parameter_groups(model, self)
        return uncompiled(torch.optim.SGD)(
            groups, lr=self.learning_rate, momentum=self.momentum, nesterov=self.nesterov
        )
