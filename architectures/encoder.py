"""BERT-style encoder: bidirectional attention, learned positions, LayerNorm, GELU.

Devlin et al. 2019 (arXiv 1810.04805), with the norms before the sublayers
(pre-norm), which trains without a long warm-up.

Shapes: B batch, T length, D d_model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from architectures.backbone import EMBEDDING_STD, Capabilities
from architectures.layers.attention import Attention, validate_heads
from architectures.layers.block import FeedForward, Mixer
from architectures.layers.feedforward import GELUMLP
from architectures.layers.stack import Stack, StackConfig


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(StackConfig):
    """A BERT-style encoder."""

    num_heads: int = 4
    """Attention heads."""
    d_ff: int | None = None
    """Hidden width of the feed-forward; null for 4 d_model."""

    def __post_init__(self) -> None:
        validate_heads(self.num_heads, self.num_heads)
        super().__post_init__()
        if self.d_ff is not None and self.d_ff < 1:
            raise ValueError(f"d_ff={self.d_ff} must be positive, or null for the standard proportion")

    @property
    def width_multiple(self) -> int:
        return self.num_heads


def sinusoids(length: int, d_model: int) -> Tensor:
    """Sines and cosines of falling frequency (Vaswani et al. 2017, section 3.5), shape (T, D)."""
    frequency = 10000.0 ** (-torch.arange(0, d_model, 2) / d_model)
    angle = torch.arange(length)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=1)[:, :d_model]


class LearnedPositions(nn.Module):
    """Token embedding plus learned position embedding, then LayerNorm.

    Positions are learned, beginning as sinusoids: in these a shift is a linear
    map, so that a small model finds "the token before" soon, not late.
    """

    def __init__(self, vocab_size: int, max_length: int, d_model: int, norm_eps: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Parameter(torch.empty(max_length, d_model))
        self.norm = nn.LayerNorm(d_model, eps=norm_eps)
        with torch.no_grad():
            self.positions.copy_(2**0.5 * EMBEDDING_STD * sinusoids(max_length, d_model))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        length = tokens_BT.shape[1]
        if length > self.positions.shape[0]:
            raise ValueError(f"{length} tokens given, positions exist for {self.positions.shape[0]}")
        return self.norm(self.tokens(tokens_BT) + self.positions[:length])


class Encoder(Stack):
    """Bidirectional transformer encoder with a masked-language-model head."""

    Config = EncoderConfig
    capabilities = Capabilities(bidirectional=True)
    config: EncoderConfig

    def make_embedding(self) -> nn.Module:
        return LearnedPositions(self.vocab_size, self.max_length, self.config.width, self.config.norm_eps)

    def make_mixer(self) -> Mixer:
        c = self.config
        return Attention(c.width, num_heads=c.num_heads, num_kv_heads=c.num_heads, causal=False, bias=True)

    def make_feedforward(self) -> FeedForward:
        return GELUMLP(self.config.width, self.config.d_ff or 4 * self.config.width)

    def make_norm(self) -> nn.Module:
        return nn.LayerNorm(self.config.width, eps=self.config.norm_eps)

    def make_final(self) -> nn.Module:
        d_model = self.config.width
        return nn.Sequential(self.make_norm(), nn.Linear(d_model, d_model), nn.GELU(), self.make_norm())

    def kernels(self) -> dict[str, str]:
        return {"attention": "torch scaled_dot_product_attention"}
