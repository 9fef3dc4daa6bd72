"""Decoder-only transformer: pre-norm blocks with RMSNorm, grouped-query attention, RoPE and SwiGLU.

The Llama recipe: Touvron et al. 2023 (arXiv 2302.13971); Ainslie et al. 2023
for grouped queries.
"""

from __future__ import annotations

from dataclasses import dataclass

from architectures.backbone import Capabilities
from architectures.layers.attention import Attention, validate_heads
from architectures.layers.block import FeedForward, Mixer
from architectures.layers.feedforward import SwiGLU, swiglu_width
from architectures.layers.stack import Stack, StackConfig


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(StackConfig):
    """A Llama-style decoder."""

    num_heads: int = 4
    """Query heads; ``d_model`` is split evenly among them."""
    num_kv_heads: int = 4
    """Key/value heads; fewer than ``num_heads`` is grouped-query attention, 1 is multi-query."""
    d_ff: int | None = None
    """Hidden width of the feed-forward; null for 8/3 d_model rounded up to a multiple of 8."""
    rope_base: float = 10000.0
    """Base of the rotary frequencies."""

    def __post_init__(self) -> None:
        validate_heads(self.num_heads, self.num_kv_heads)
        super().__post_init__()
        if self.d_ff is not None and self.d_ff < 1:
            raise ValueError(f"d_ff={self.d_ff} must be positive, or null for the standard proportion")

    @property
    def width_multiple(self) -> int:
        return 2 * self.num_heads  # rotary embeddings turn pairs: heads have even width


class Decoder(Stack):
    """Decoder-only transformer."""

    Config = DecoderConfig
    capabilities = Capabilities(causal=True, decodes=True)
    config: DecoderConfig

    def make_mixer(self) -> Mixer:
        c = self.config
        return Attention(
            c.width,
            num_heads=c.num_heads,
            num_kv_heads=c.num_kv_heads,
            causal=self.capabilities.causal,
            rope_base=c.rope_base,
        )

    def make_feedforward(self) -> FeedForward:
        return SwiGLU(self.config.width, self.config.d_ff or swiglu_width(self.config.width))

    def kernels(self) -> dict[str, str]:
        return {"attention": "torch scaled_dot_product_attention"}
