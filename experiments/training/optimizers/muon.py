"""Muon for hidden matrices, AdamW for all other parameters.

Jordan et al. 2024 (https://kellerjordan.github.io/posts/muon): the momentum of a matrix is orthogonalized
by a few Newton-Schulz steps. As in Liu et al. 2025 (Moonlight, arXiv 2502.16982) the update of an n by m
matrix is scaled by 0.2 sqrt(max(n, m)), the size of AdamW's: one learning rate and decay serve both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from archbench.experiments.training.optimizers.adamw import AdamW
from archbench.experiments.training.optimizers.combined import Combined, hidden_matrices
from archbench.experiments.training.optimizers.parameter_groups import parameter_groups, uncompiled

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Muon(AdamW):
    """Muon. ``betas`` and ``eps`` are those of AdamW, for embeddings, heads, readouts, norms, biases, tables,
    convolutions, what a backbone exempts from decay or caps the rate of, and tensors of three dimensions,
    such as experts."""

    momentum: float = 0.95
    """Decay rate of the mean of gradients."""
    nesterov: bool = True
    """Nesterov's momentum: the gradient is looked up ahead."""
    ns_steps: int = 5
    """Newton-Schulz steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum} must be in [0, 1)")
        if not 1 <= self.ns_steps < 100:
            raise ValueError(f"ns_steps={self.ns_steps} must be from 1 to 99")

    def build(self, model: nn.Module) -> torch.optim.Optimizer:

        groups = parameter_groups(model, self, apart=hidden_matrices(model))
        matrices = [group for group in groups if group["apart"]]
        others = [group for group in groups if not group["apart"]]
        parts: list[torch.optim.Optimizer] = []
        if matrices:
            parts.append(
                uncompiled(torch.optim.Muon)(
                    matrices,
                    lr=self.learning_rate,
                    momentum=self.momentum,
                    nesterov=self.nesterov,
                    ns_steps=self.ns_steps,
                    adjust_lr_fn="match_rms_adamw",
                )
            )
        if others:
            parts.append(self.of_groups(others))
        return uncompiled(Combined)(parts)

    def division(self, model: nn.Module) -> list[str]:
        matrices = hidden_matrices(model)
        names: dict[str, set[str]] = {"Muon": set(), "AdamW": set()}
        for name, parameter in model.named_parameters():
            part = "Muon" if id(parameter) in matrices else "AdamW"
            names[part].add(re.sub(r"\.\d+\.", ".*.", name))
        return [f"{part}: {', '.join(sorted(of_part)) or 'nothing'}" for part, of_part in names.items()]
