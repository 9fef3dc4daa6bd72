"""Gated linear attention: a memory of one matrix for each head, with a decay for each channel of the keys.

Shapes: B batch, T length, D d_model, H heads, K key width, V value width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archbench.architectures.layers.linear_attention.base import LinearMixer, LinearMixerConfig
from archbench.architectures.layers.linear_attention.gla import (
    gated_linear_attention,
    gated_linear_attention_flops,
)


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
        compute_dtype = torch.promote_types(decay_BTHK.dtype, torch.float32)
        return F.logsigmoid(decay_BTHK.to(compute_dtype)) / self.temperature

    def remember(
        self,
        x_BTD: Tensor,
        q_BTHK: Tensor,
        k_BTHK: Tensor,
        v_BTHV: Tensor,
        log_decay: Tensor | None,
        memory_BHKV: Tensor | None,
        path: str,
    ) -> tuple[Tensor, Tensor]:
        assert log_decay is not None
        with torch.autocast(x_BTD.device.type, enabled=False):
            return gated_linear_attention(q_BTHK, k_BTHK, v_BTHV, log_decay, memory_BHKV, path=path)

    def memory_flops(self, length: int) -> int:
        return gated_linear_attention_flops(length, self.heads, self.key_width, self.value_width)


Config = GatedLinearConfig
make = GatedLinearAttention
