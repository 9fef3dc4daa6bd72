"""Settings of state-space mixers with heads: Mamba-2 and Mamba-3."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

from archbench.architectures.layers.block import MixerConfig


@dataclass(frozen=True, kw_only=True)
class HeadsConfig(MixerConfig):
    """Heads of 2 d_model channels together, each with one decay."""

    num_heads: int = 8
    """Heads; each has one decay."""
    head_dim: int | None = None
    """Channels of a head (P); null for 2 d_model / num_heads."""
    d_state: int | None = None
    """State of each channel (N); null for 64."""

    @property
    def channel_multiple(self) -> int:
        heads = self.num_heads if self.head_dim is None else 1
        return heads // math.gcd(2, heads)  # there are 2 d_model channels

    def resolved(self, d_model: int) -> Self:
        """Return the configuration with every null replaced by its default for this width."""
        if self.head_dim is None and 2 * d_model % self.num_heads:
            raise ValueError(
                f"num_heads={self.num_heads} must divide 2 d_model={2 * d_model}: change it, or give head_dim"
            )
        head_dim = self.head_dim or 2 * d_model // self.num_heads
        return replace(self, head_dim=head_dim, d_state=self.d_state or 64)
