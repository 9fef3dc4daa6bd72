"""DeltaNet: a memory of one matrix for each head, updated by the delta rule.

Shapes: B batch, T length, D d_model, H heads, K key width, V value width of a head, S updates of
all tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from archbench.architectures.layers.linear_attention.base import LinearMixer, LinearMixerConfig
from archbench.architectures.layers.linear_attention.delta_rule import delta_rule, delta_rule_flops


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

    decays: ClassVar[bool] = False
    """True where the memory decays."""

    def __init__(
        self,
        d_model: int,
        config: DeltaConfig,
        *,
        norm_eps: float = 1e-5,
        value_heads: int | None = None,
        updates: int = 1,
    ) -> None:
        super().__init__(d_model, config, norm_eps=norm_eps, value_heads=value_heads, updates=updates)
        self.strongest = 2.0 if config.negative_eigenvalues else 1.0
        self.beta = nn.Linear(d_model, updates * self.value_heads, bias=False)

    def remember(
        self,
        x_BTD: Tensor,
        q_BTHK: Tensor,
        k_BSHK: Tensor,
        v_BSHV: Tensor,
        log_decay: Tensor | None,
        memory_BHKV: Tensor | None,
        path: str,
    ) -> tuple[Tensor, Tensor]:
        compute_dtype = torch.promote_types(v_BSHV.dtype, torch.float32)
        beta = self.strongest * self.beta(x_BTD).to(compute_dtype).sigmoid()
        beta_BSH = beta.unflatten(-1, (self.updates, -1)).flatten(1, 2)
        operands = (q_BTHK, k_BSHK, v_BSHV, beta_BSH, log_decay, memory_BHKV)
        with torch.autocast(x_BTD.device.type, enabled=False):
            return delta_rule(*operands, unit_keys=True, path=path)

    def memory_flops(self, length: int) -> int:
        sizes = (self.value_heads, self.key_width, self.value_width)
        return delta_rule_flops(length, *sizes, decays=self.decays, updates=self.updates)


Config = DeltaConfig
make = DeltaRule
