"""Mixers of linear attention: gated linear attention, the delta rule and the gated delta rule.

Each head has a memory of one matrix of fixed size, so that the cost of a token does not grow with the number
of tokens before it. The three mixers differ in how the memory decays and how it is updated.

Shapes: B batch, T length, D d_model, H heads, K key width, V value width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from architectures.layers.linear_attention.base import LinearMixer, LinearMixerConfig
from architectures.layers.linear_attention.delta_rule import delta_rule, delta_rule_flops
from architectures.layers.linear_attention.gla import gated_linear_attention, gated_linear_attention_flops
from architectures.layers.ssm.recurrent import draw_time_steps


@dataclass(frozen=True, kw_only=True)
class GatedLinearConfig(LinearMixerConfig):
    """Gated linear attention; the defaults are the paper's, with fewer heads for small models."""

    expand_k: float = 0.5
    """Width of the keys of all heads together, as a multiple of d_model."""
    conv_width: int = 0
    """Taps of the causal convolution on queries, keys and values, and then SiLU; 0 for neither."""
    decay_rank: int = 16
    """Rank of the projection to the decays."""
    decay_temperature: float = 16.0
    """The logarithm of the sigmoid is divided by this: larger remembers longer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("decay_rank", "decay_temperature"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)} must be positive")


class GatedLinearAttention(LinearMixer):
    """Each channel of the keys has a decay that depends on the token (Yang et al. 2023, arXiv 2312.06635)."""

    def __init__(self, d_model: int, config: GatedLinearConfig, *, norm_eps: float = 1e-5) -> None:
        super().__init__(d_model, config, norm_eps=norm_eps)
        self.temperature = config.decay_temperature
        keys = self.heads * self.key_width
        self.decay = nn.Sequential(
            nn.Linear(d_model, config.decay_rank, bias=False), nn.Linear(config.decay_rank, keys)
        )

    def log_decay(self, x_BTD: Tensor) -> Tensor:
        """a = sigmoid(low-rank projection)^(1 / temperature) (section 4)."""
        decay_BTHK = self.decay(x_BTD).unflatten(-1, (self.heads, -1))
        wide = torch.promote_types(decay_BTHK.dtype, torch.float32)
        return F.logsigmoid(decay_BTHK.to(wide)) / self.temperature

    def remember(
        self,
        x_BTD: Tensor,
        q_BTHK: Tensor,
        k_BTHK: Tensor,
        v_BTHV: Tensor,
        log_decay: Tensor | None,
        memory_BHKV: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        assert log_decay is not None
        with torch.autocast(x_BTD.device.type, enabled=False):
            return gated_linear_attention(q_BTHK, k_BTHK, v_BTHV, log_decay, memory_BHKV, path=self.path)

    def memory_flops(self, length: int) -> int:
        return gated_linear_attention_flops(length, self.heads, self.key_width, self.value_width)


@dataclass(frozen=True, kw_only=True)
class DeltaConfig(LinearMixerConfig):
    """DeltaNet; the defaults are the paper's, with fewer heads for small models."""

    output_gate: bool = False
    """Multiply the normalised output by SiLU of a projection of the input."""
    negative_eigenvalues: bool = False
    """beta in (0, 2), not (0, 1): the transition of the memory has eigenvalues in [-1, 1], not [0, 1], so
    that it can count modulo two (Grazzi et al. 2024, arXiv 2411.12537)."""


class DeltaRule(LinearMixer):
    """Updates the memory by the difference from what it recalls (DeltaNet: Yang et al. 2024, arXiv
    2406.06484)."""

    def __init__(
        self,
        d_model: int,
        config: DeltaConfig,
        *,
        norm_eps: float = 1e-5,
        value_heads: int | None = None,
    ) -> None:
        super().__init__(d_model, config, norm_eps=norm_eps, value_heads=value_heads)
        self.strongest = 2.0 if config.negative_eigenvalues else 1.0
        self.beta = nn.Linear(d_model, self.value_heads, bias=False)

    def log_decay(self, x_BTD: Tensor) -> Tensor | None:
        """Return None: the memory does not decay."""
        return None

    def remember(
        self,
        x_BTD: Tensor,
        q_BTHK: Tensor,
        k_BTHK: Tensor,
        v_BTHV: Tensor,
        log_decay: Tensor | None,
        memory_BHKV: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        beta_BTH = self.strongest * self.beta(x_BTD).to(v_BTHV.dtype).sigmoid()
        q_BTHK, k_BTHK = unit(q_BTHK), unit(k_BTHK)
        with torch.autocast(x_BTD.device.type, enabled=False):
            return delta_rule(q_BTHK, k_BTHK, v_BTHV, beta_BTH, log_decay, memory_BHKV, path=self.path)

    def memory_flops(self, length: int) -> int:
        return delta_rule_flops(length, self.value_heads, self.key_width, self.value_width, decays=False)


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
    """Heads of values, each with a memory: a multiple of ``num_heads``, then those of queries and keys, which
    several share (Qwen3-Next); null for as many."""
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

    def __init__(self, d_model: int, config: GatedDeltaConfig, *, norm_eps: float = 1e-5) -> None:
        super().__init__(d_model, config, norm_eps=norm_eps, value_heads=config.num_value_heads)
        self.dt_range = (config.dt_min, config.dt_max)
        self.dt = nn.Linear(d_model, self.value_heads, bias=False)
        self.dt_bias_H = nn.Parameter(torch.empty(self.value_heads))
        self.A_log_H = nn.Parameter(torch.empty(self.value_heads))

    def log_decay(self, x_BTD: Tensor) -> Tensor:
        """a = exp(-A dt), with dt = softplus(projection + bias)."""
        dt_BTH = self.dt(x_BTD)
        wide = torch.promote_types(dt_BTH.dtype, torch.float32)
        return -self.A_log_H.to(wide).exp() * F.softplus(dt_BTH.to(wide) + self.dt_bias_H)

    def memory_flops(self, length: int) -> int:
        return delta_rule_flops(length, self.value_heads, self.key_width, self.value_width, decays=True)

    @torch.no_grad()
    def initialise(self, num_branches: int) -> None:
        """Time steps log-uniform in [dt_min, dt_max]; A uniform up to 16, as in the authors' code."""
        super().initialise(num_branches)
        draw_time_steps(self.dt_bias_H, *self.dt_range)
        self.A_log_H.uniform_(0.01, 16.0).log_()  # away from 0, which has no logarithm


def unit(x_BTHK: Tensor) -> Tensor:
    """Return the vectors scaled to length one, up to a small constant."""
    return x_BTHK * (x_BTHK.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
