"""The residual block and the mixer contract that every layer of every stack obeys.

Shapes: B batch, T length, D d_model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from architectures.backbone import Flops, linear_flops

Auxiliary = dict[str, Tensor]


class Mixer(nn.Module, ABC):
    """Mixes information across positions: attention, a state-space model, ..."""

    @abstractmethod
    def forward(self, x_BTD: Tensor, valid_BT: Tensor | None = None) -> Tensor:
        """The mixed sequence, same shape."""

    @abstractmethod
    def flops(self, length: int) -> Flops:
        """Forward FLOPs of one sequence."""

    def start(self, batch_size: int, max_length: int) -> dict[str, Any]:
        """An empty decoding state of this layer."""
        raise ValueError(f"{type(self).__name__} cannot decode step by step")

    def step(self, x_BTD: Tensor, state: dict[str, Any], position: int) -> Tensor:
        """The next T positions, the first of which is ``position``; advances ``state`` in place."""
        raise ValueError(f"{type(self).__name__} cannot decode step by step")

    def state_bytes(self, length: int, bytes_per_element: int) -> int:
        """Bytes of this layer's state for one sequence after ``length`` tokens."""
        return 0

    def initialise(self, num_layers: int) -> None:
        """Sets what the general initialisation must not decide (time steps, residual scale)."""


class FeedForward(nn.Module, ABC):
    """Works on each position alone. Returns auxiliary losses, empty where there are none."""

    @abstractmethod
    def forward(self, x_BTD: Tensor, valid_BT: Tensor | None = None) -> tuple[Tensor, Auxiliary]:
        """The transformed positions, same shape, and losses summed over sequences."""

    def flops(self, length: int) -> Flops:
        """Forward FLOPs of one sequence."""
        return Flops(linear=linear_flops(self, length))

    def initialise(self, num_layers: int) -> None:
        """Sets what the general initialisation must not decide."""


class Block(nn.Module):
    """Pre-norm residual block: ``x + mixer(norm(x))``, then ``x + feedforward(norm(x))`` if it has one."""

    def __init__(
        self,
        mixer: Mixer,
        feedforward: FeedForward | None,
        mixer_norm: nn.Module,
        feedforward_norm: nn.Module | None,
    ) -> None:
        super().__init__()
        self.mixer_norm = mixer_norm
        self.mixer = mixer
        self.feedforward_norm = feedforward_norm
        self.feedforward = feedforward

    def forward(self, x_BTD: Tensor, valid_BT: Tensor | None) -> tuple[Tensor, Auxiliary]:
        x_BTD = x_BTD + self.mixer(self.mixer_norm(x_BTD), valid_BT)
        return self._feed_forward(x_BTD, valid_BT)

    def step(self, x_BTD: Tensor, state: dict[str, Any], position: int) -> Tensor:
        x_BTD = x_BTD + self.mixer.step(self.mixer_norm(x_BTD), state, position)
        return self._feed_forward(x_BTD, None)[0]

    def _feed_forward(self, x_BTD: Tensor, valid_BT: Tensor | None) -> tuple[Tensor, Auxiliary]:
        if self.feedforward is None or self.feedforward_norm is None:
            return x_BTD, {}
        y_BTD, auxiliary = self.feedforward(self.feedforward_norm(x_BTD), valid_BT)
        return x_BTD + y_BTD, auxiliary

    def flops(self, length: int) -> Flops:
        mixer = self.mixer.flops(length)
        return mixer if self.feedforward is None else mixer + self.feedforward.flops(length)
