"""AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from archbench.experiments.config.optimizer import OptimizerConfig
from archbench.experiments.training.optimizers.parameter_groups import parameter_groups, uncompiled

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class AdamW(OptimizerConfig):
    """AdamW. Its decay is decoupled: it acts times the learning rate."""

    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])
    """Decay rates of the two moments."""
    eps: float = 1e-8
    """Added to the root of the second moment."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas):
            raise ValueError(f"betas={list(self.betas)} must be two numbers in [0, 1)")
        if self.eps <= 0:
            raise ValueError(f"eps={self.eps} must be positive")

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        return self.of_groups(parameter_groups(model, self))

    def of_groups(self, groups: list[dict[str, object]]) -> torch.optim.AdamW:
        """Return AdamW of some of the groups of a model."""

        return uncompiled(torch.optim.AdamW)(
            groups,
            lr=self.learning_rate,
            betas=(self.betas[0], self.betas[1]),
            eps=self.eps,
            fused=True,
        )
