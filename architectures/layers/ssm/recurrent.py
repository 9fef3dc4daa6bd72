"""Base of mixers with a recurrent state.

Shapes: B batch, T length, D d_model.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from archbench.architectures.layers.block import Mixer
from archbench.architectures.layers.context import Context

State = dict[str, Tensor]


class RecurrentMixer(Mixer):
    """A mixer that reads a sequence in pieces: the state after one piece is the initial state of the next.

    Linear layers project each position in and out; only the operations between them mix positions.
    """

    projections: ClassVar[tuple[str, ...]]
    """Names of those linear layers, ``out`` among them."""
    out: nn.Linear
    """The last of them."""
    borrowed = False
    """True where they are those of another mixer, which initialises them."""

    def borrow(self, mixer: RecurrentMixer) -> None:
        """Share the projections of ``mixer``, which has the same type."""
        for name in self.projections:
            setattr(self, name, getattr(mixer, name))
        self.borrowed = True

    @abstractmethod
    def project(self, x_BTD: Tensor) -> tuple[Tensor, ...]:
        """Return the inputs of ``mix``, each (B, T, ...): pointwise functions of the
        positions."""

    @abstractmethod
    def mix(
        self, projected: tuple[Tensor, ...], state: State | None, context: Context
    ) -> tuple[Tensor, State]:
        """Return the input (B, T, C) of ``out``, and the state after; see ``read``."""

    def read(self, x_BTD: Tensor, state: State | None, context: Context) -> tuple[Tensor, State]:
        """Return the mixed piece (B, T, D), and the state after the valid tokens of each row.

        ``state`` is that after the pieces before, or of ``start``. It is not modified, and gradients
        flow through it. None is for a full sequence: the mamba_ssm kernel may then run, without gradients for
        the final state. Documents of a packed batch begin in the zero state.
        """
        y_BTC, after = self.mix(self.project(x_BTD), state, context)
        return self.out(y_BTC), after

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        return self.read(x_BTD, None, context)[0]

    def step(self, x_BTD: Tensor, state: Any, context: Context) -> Tensor:
        y_BTD, after = self.read(x_BTD, state, context)
        for name, value in after.items():
            state[name].copy_(value)
        return y_BTD


def document_starts(context: Context) -> Tensor | None:
    """True (B, T) where a document begins; None where each row is one document."""
    return None if context.documents_BT is None else context.positions_BT == 0


@torch.no_grad()
def draw_time_steps(bias: Tensor, low: float, high: float) -> None:
    """Fill ``bias`` so that softplus of it is log-uniform in [low, high], and at least 1e-4.

    Source: Gu and Dao 2023 (arXiv 2312.00752), section 3.6, and the floor of the authors' code.
    """
    step = torch.empty_like(bias).uniform_(math.log(low), math.log(high)).exp().clamp_min(1e-4)
    bias.copy_(step + (-(-step).expm1()).log())  # the inverse of softplus
