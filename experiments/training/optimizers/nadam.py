"""Adam with Nesterov's momentum (Dozat 2016, "Incorporating Nesterov momentum into Adam")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from archbench.experiments.training.optimizers.adamw import AdamW
from archbench.experiments.training.optimizers.parameter_groups import parameter_groups, uncompiled

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class NAdam(AdamW):
    """NAdam: AdamW with Nesterov momentum, which has a warm-up schedule."""

    momentum_decay: float = 4e-3
    """How fast the momentum of step t rises to its rate: by a factor of 1 - 0.96^(t * momentum_decay) / 2."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum_decay < 0:
            raise ValueError(f"momentum_decay={self.momentum_decay} must be 0 or more")

    def build(self, model: nn.Module) -> torch.optim.Optimizer:

        return uncompiled(torch.optim.NAdam)(
            parameter_groups(model, self),
            lr=self.learning_rate,
            betas=(self.betas[0], self.betas[1]),
            eps=self.eps,
            momentum_decay=self.momentum_decay,
            decoupled_weight_decay=True,
        )
