"""Gated DeltaNet: the delta rule with a decay of each head.

Shapes: B batch, T length, D d_model, H heads, K key width, V value width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archbench.architectures.layers.ssm.recurrent import draw_time_steps
from archbench.architectures.mixers.deltanet import DeltaConfig, DeltaRule


@dataclass(frozen=True, kw_only=True)
class GatedDeltaConfig(DeltaConfig):
    """Gated DeltaNet; the defaults are the paper's, with fewer heads for small models."""

    expand_k: float = 0.75
    """Width of the keys of all heads together, as a multiple of d_model."""
    expand_v: float = 1.5
    """Width of the values of all heads together, as a multiple of d_model."""
    output_gate: bool = True
    """Multiply the normalised output by SiLU of a projection of the input."""
    num_value_heads: int | None = None
    """Heads of values, each with a memory: a multiple of ``num_heads``, which are then those of queries and
    keys, each shared by multiple heads of values (Qwen3-Next); null for as many."""
    dt_min: float = 0.001
    """Smallest time step at initialisation."""
    dt_max: float = 0.1
    """Largest time step at initialisation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_value_heads is not None and (
            self.num_value_heads < 1 or self.num_value_heads % self.num_heads
        ):
            raise ValueError(
                f"num_value_heads={self.num_value_heads} must be a multiple of num_heads={self.num_heads}"
            )
        if not 0 < self.dt_min <= self.dt_max:
            raise ValueError(
                f"dt_min={self.dt_min} and dt_max={self.dt_max} must satisfy 0 < dt_min <= dt_max"
            )

    def resolved(self, d_model: int) -> Self:
        """Return the same with the number of value heads, and with the widths that heads really get."""
        value_heads = self.num_value_heads or self.num_heads
        keys = self.num_heads * max(1, round(self.expand_k * d_model / self.num_heads))
        values = value_heads * max(1, round(self.expand_v * d_model / value_heads))
        return replace(self, num_value_heads=value_heads, expand_k=keys / d_model, expand_v=values / d_model)


class GatedDeltaRule(DeltaRule):
    """The delta rule with a decay of each head, as Mamba-2's (Yang et al. 2024, arXiv 2412.06464)."""

    decays = True

    def __init__(
        self, d_model: int, config: GatedDeltaConfig, *, norm_eps: float = 1e-5, updates: int = 1
    ) -> None:
        super().__init__(
            d_model, config, norm_eps=norm_eps, value_heads=config.num_value_heads, updates=updates
        )
        self.dt_range = (config.dt_min, config.dt_max)
        self.dt = nn.Linear(d_model, self.value_heads, bias=False)
        self.dt_bias_H = nn.Parameter(torch.empty(self.value_heads))
        self.A_log_H = nn.Parameter(torch.empty(self.value_heads))

    def log_decay(self, x_BTD: Tensor) -> Tensor:
        """a = exp(-A dt), with dt = softplus(projection + bias)."""
        dt_BTH = self.dt(x_BTD)
        compute_dtype = torch.promote_types(dt_BTH.dtype, torch.float32)
        return -self.A_log_H.to(compute_dtype).exp() * F.softplus(dt_BTH.to(compute_dtype) + self.dt_bias_H)

    @torch.no_grad()
    def initialise(self, num_branches: int) -> None:
        """Time steps log-uniform in [dt_min, dt_max]; A uniform up to 16, as in the authors' code."""
        super().initialise(num_branches)
        draw_time_steps(self.dt_bias_H, *self.dt_range)
        self.A_log_H.uniform_(0.01, 16.0).log_()  # away from 0, which has no logarithm


Config = GatedDeltaConfig
make = GatedDeltaRule
