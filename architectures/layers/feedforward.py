"""Dense feed-forward layers.

Shapes: B batch, T length, D d_model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from architectures.layers.block import Auxiliary, FeedForward


def swiglu_width(d_model: int) -> int:
    """8/3 d_model, rounded up to a multiple of 8: three matrices then weigh what two of 4 d_model do."""
    return -(-8 * d_model // 3 // 8) * 8


class SwiGLU(FeedForward):
    """``down(silu(gate(x)) * up(x))``. Shazeer 2020 (arXiv 2002.05202)."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, d_ff, bias=False)
        self.up = nn.Linear(d_model, d_ff, bias=False)
        self.down = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x_BTD: Tensor, valid_BT: Tensor | None = None) -> tuple[Tensor, Auxiliary]:
        return self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD)), {}

    @torch.no_grad()
    def initialise(self, num_layers: int) -> None:
        self.down.weight.mul_((2 * num_layers) ** -0.5)


class GELUMLP(FeedForward):
    """``down(gelu(up(x)))`` with biases, exact (erf) GELU, as in BERT."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, d_ff)
        self.down = nn.Linear(d_ff, d_model)

    def forward(self, x_BTD: Tensor, valid_BT: Tensor | None = None) -> tuple[Tensor, Auxiliary]:
        return self.down(F.gelu(self.up(x_BTD))), {}

    @torch.no_grad()
    def initialise(self, num_layers: int) -> None:
        self.down.weight.mul_((2 * num_layers) ** -0.5)
