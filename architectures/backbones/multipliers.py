"""Constant factors of what layers read and write, as in Falcon-H1 (Zuo et al. 2025, arXiv 2507.22448, section
3.2.3). Training is not the same with the factors in the weights: the steps of Adam do not scale with them.

Shapes: B batch, T length, I inputs, O outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from archbench.architectures.layers.attention.forgetting import ForgettingAttention
from archbench.architectures.layers.attention.multi_head import Attention
from archbench.architectures.layers.embedding import Embedding
from archbench.architectures.layers.feedforward import DenseFeedForward
from archbench.architectures.mixers.mamba2 import SSD


@dataclass(frozen=True, kw_only=True)
class MultipliersConfig:
    """Constant factors of the parts of a model; those of absent layers have no effect."""

    embedding: float = 1.0
    """Token embeddings."""
    head: float = 1.0
    """Logits."""
    attention_in: float = 1.0
    """Inputs of attention."""
    attention_out: float = 1.0
    """Outputs of attention."""
    key: float = 1.0
    """Keys of attention."""
    mamba2_in: float = 1.0
    """Inputs of Mamba-2."""
    mamba2_out: float = 1.0
    """Outputs of Mamba-2."""
    mamba2_parts: list[float] = field(default_factory=lambda: [1.0] * 5)
    """Gate, channels, B, C and time steps of Mamba-2, as projected."""
    gate: float = 1.0
    """The gate of dense feed-forwards, before its activation."""
    down: float = 1.0
    """Outputs of dense feed-forwards."""

    def __post_init__(self) -> None:
        if len(self.mamba2_parts) != 5:
            raise ValueError(f"multipliers.mamba2_parts={self.mamba2_parts} must be five numbers")
        for name, value in vars(self).items():
            if not all(math.isfinite(x) for x in (value if isinstance(value, list) else [value])):
                raise ValueError(f"multipliers.{name}={value} must be finite")


class ScaledLinear(nn.Linear):
    """A linear layer with constant factors of its input, and of parts of its output."""

    before: float
    """Factor of the input."""
    after: list[tuple[int, float]]
    """Widths of the parts of the output, and their factors."""

    def forward(self, x_BTI: Tensor) -> Tensor:
        y_BTO = super().forward(x_BTI if self.before == 1 else x_BTI * self.before)
        if len(self.after) == 1:
            return y_BTO * self.after[0][1]
        parts = y_BTO.split([width for width, _ in self.after], dim=-1)
        return torch.cat([part * factor for part, (_, factor) in zip(parts, self.after, strict=True)], dim=-1)


def scale_layers(model: nn.Module, multipliers: MultipliersConfig) -> None:
    """Apply the factors to the layers of a model; factors of one change no layer."""
    m = multipliers
    for part in list(model.modules()):
        if isinstance(part, Attention):
            part.q = scaled(part.q, before=m.attention_in)
            part.k = scaled(part.k, before=m.attention_in, after=m.key)
            part.v = scaled(part.v, before=m.attention_in)
            part.out = scaled(part.out, after=m.attention_out)
            if part.gate is not None:
                part.gate = scaled(part.gate, before=m.attention_in)
            if isinstance(part, ForgettingAttention):
                part.forget = scaled(part.forget, before=m.attention_in)
        elif isinstance(part, SSD):
            gate, convolved, steps = part.parts
            widths = [gate, *part.convolved, steps]
            assert sum(part.convolved) == convolved
            part.input = scaled(part.input, before=m.mamba2_in, widths=widths, factors=m.mamba2_parts)
            part.out = scaled(part.out, after=m.mamba2_out)
        elif isinstance(part, DenseFeedForward):
            if part.gate is not None:
                part.gate = scaled(part.gate, after=m.gate)
            part.down = scaled(part.down, after=m.down)
        elif isinstance(part, Embedding) and m.embedding != 1:
            part.scale = (part.scale or 1.0) * m.embedding


def scaled(
    linear: nn.Linear,
    *,
    before: float = 1.0,
    after: float = 1.0,
    widths: list[int] | None = None,
    factors: list[float] | None = None,
) -> nn.Linear:
    """Return a layer of the same parameters with these factors; the layer itself where all are one."""
    parts = list(zip(widths or [linear.out_features], factors or [after], strict=True))
    if before == 1 and all(factor == 1 for _, factor in parts):
        return linear
    new = ScaledLinear(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
    new.weight, new.bias = linear.weight, linear.bias
    new.before, new.after = before, parts
    return new
