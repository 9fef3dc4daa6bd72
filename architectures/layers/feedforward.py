"""Dense feed-forward layers.

Shapes: B batch, T length, D d_model, F d_ff.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archbench.architectures.layers.activations import ACTIVATIONS, Activation, LimitedActivation
from archbench.architectures.layers.block import Auxiliary, FeedForward
from archbench.architectures.layers.canon import filtered
from archbench.architectures.layers.context import Context


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig:
    """The feed-forward of a transformer layer; its hidden width is ``d_ff``."""

    activation: str = "silu"
    """``relu``, ``relu_squared``, ``gelu`` (exact), ``gelu_tanh``, ``silu`` or ``quick_gelu``
    (x sigmoid(1.702 x))."""
    gated: bool = True
    """``down(activation(gate(x)) * up(x))``: with silu this is SwiGLU, with gelu GEGLU."""
    bias: bool = False
    """Biases in its linear layers."""
    limit: float | None = None
    """``activation(min(gate(x), limit)) * (clamp(up(x), -limit, limit) + 1)`` instead (GPT-OSS)."""
    multiple_of: int = 8
    """The standard width of a gated layer, 8/3 d_model, is rounded up to a multiple of this."""

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"feedforward.activation={self.activation!r} must be one of {', '.join(ACTIVATIONS)}"
            )
        if self.limit is not None and (self.limit <= 0 or not self.gated):
            raise ValueError(
                f"feedforward.limit={self.limit} must be positive, and goes with feedforward.gated=true"
            )
        if self.multiple_of < 1:
            raise ValueError(f"feedforward.multiple_of={self.multiple_of} must be positive")

    @property
    def function(self) -> Activation:
        """The activation, with its limits."""
        plain = ACTIVATIONS[self.activation]
        if self.limit is None:
            return plain
        return LimitedActivation(f"limited_{plain.name}", plain.by_torch, limit=self.limit)

    def standard_width(self, d_model: int) -> int:
        """4 d_model; 8/3 d_model where gated, so that three matrices weigh what two of 4 d_model do."""
        return swiglu_width(d_model, self.multiple_of) if self.gated else 4 * d_model


def swiglu_width(d_model: int, multiple_of: int = 8) -> int:
    """8/3 d_model, rounded up."""
    return -(-8 * d_model // 3 // multiple_of) * multiple_of


class DenseFeedForward(FeedForward):
    """``down(activation(up(x)))``, or with a gate (Shazeer 2020, arXiv 2002.05202)."""

    accepts_low_precision_input = True
    decode_kernel = "decode dense"

    def __init__(self, d_model: int, d_ff: int, config: FeedForwardConfig | None = None) -> None:
        super().__init__()
        config = config or FeedForwardConfig()
        self.config = config
        self.activation = config.function
        self.gate = nn.Linear(d_model, d_ff, bias=config.bias) if config.gated else None
        self.up = nn.Linear(d_model, d_ff, bias=config.bias)
        self.down = nn.Linear(d_ff, d_model, bias=config.bias)

    @property
    def canon_widths(self) -> dict[str, int]:
        width = self.up.out_features
        return {"up": width} if self.gate is None else {"gate": width, "up": width}

    def forward(self, x_BTD: Tensor, context: Context | None = None) -> tuple[Tensor, Auxiliary]:
        up_BTF = filtered(self, "up", self.up(x_BTD), context)
        if self.gate is None:
            return self.down(self.activation(up_BTF)), {}
        gate_BTF = filtered(self, "gate", self.gate(x_BTD), context)
        return self.down(self.activation.times(gate_BTF, up_BTF)), {}

    @torch.no_grad()
    def initialise(self, num_branches: int) -> None:
        self.down.weight.mul_(num_branches**-0.5)
