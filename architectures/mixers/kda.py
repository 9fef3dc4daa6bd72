"""Kimi Delta Attention: the delta rule with a decay of each channel of the keys.

Shapes: B batch, T length, D d_model, H heads, K key width of a head, C channels of
the keys of all heads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archbench.architectures.layers.ssm.recurrent import draw_time_steps
from archbench.architectures.mixers.deltanet import DeltaRule
from archbench.architectures.mixers.gated_deltanet import GatedDeltaConfig


@dataclass(frozen=True, kw_only=True)
class KimiDeltaConfig(GatedDeltaConfig):
    """Kimi Delta Attention; the defaults are those of the authors' layer, with fewer heads for small
    models."""

    expand_k: float = 1.0
    """Width of the keys of all heads together, as a multiple of d_model."""
    expand_v: float = 1.0
    """Width of the values of all heads together, as a multiple of d_model."""
    output_gate: bool = True
    """Multiply the normalised output by the sigmoid of a low-rank projection of the input."""
    decay_rank: int | None = None
    """Rank of the projection to the decays; null for the width of the values of a head."""
    gate_rank: int | None = None
    """Rank of the projection to the output gate; null for the width of the values of a head."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("decay_rank", "gate_rank"):
            rank = getattr(self, name)
            if rank is not None and rank < 1:
                raise ValueError(f"{name}={rank} must be positive, or null for the width of a head's values")

    def resolved(self, d_model: int) -> Self:
        """Return the same with heads, widths and ranks that are used at this width."""
        config = super().resolved(d_model)
        assert config.num_value_heads is not None
        width = round(config.expand_v * d_model / config.num_value_heads)
        return replace(config, decay_rank=self.decay_rank or width, gate_rank=self.gate_rank or width)


class KimiDeltaRule(DeltaRule):
    """The delta rule with a decay of each channel of the keys (Kimi Team 2025, arXiv 2510.26692)."""

    decays = True
    gate_is_silu = False

    def __init__(self, d_model: int, config: KimiDeltaConfig, *, norm_eps: float = 1e-5) -> None:
        super().__init__(d_model, config, norm_eps=norm_eps, value_heads=config.num_value_heads)
        self.dt_range = (config.dt_min, config.dt_max)
        decay_rank, gate_rank = (rank or self.value_width for rank in (config.decay_rank, config.gate_rank))
        self.dt = low_rank(d_model, decay_rank, self.value_heads * self.key_width)
        self.dt_bias_C = nn.Parameter(torch.empty(self.value_heads * self.key_width))
        self.A_log_H = nn.Parameter(torch.empty(self.value_heads))
        if config.output_gate:
            self.gate = low_rank(d_model, gate_rank, self.value_heads * self.value_width)

    def log_decay(self, x_BTD: Tensor) -> Tensor:
        """a = exp(-A dt), with dt = softplus(low-rank projection + bias)."""
        dt_BTC = self.dt(x_BTD)
        compute_dtype = torch.promote_types(dt_BTC.dtype, torch.float32)
        dt_BTHK = F.softplus(dt_BTC.to(compute_dtype) + self.dt_bias_C).unflatten(-1, (self.value_heads, -1))
        return -self.A_log_H.to(compute_dtype).exp()[:, None] * dt_BTHK

    @torch.no_grad()
    def initialise(self, num_branches: int) -> None:
        """Time steps log-uniform in [dt_min, dt_max]; A uniform in [1, 16], as in the authors' code."""
        super().initialise(num_branches)
        draw_time_steps(self.dt_bias_C, *self.dt_range)
        self.A_log_H.uniform_(1.0, 16.0).log_()


def low_rank(inputs: int, rank: int, outputs: int) -> nn.Sequential:
    """Return a projection through ``rank`` channels, without biases."""
    return nn.Sequential(nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False))


Config = KimiDeltaConfig
make = KimiDeltaRule
