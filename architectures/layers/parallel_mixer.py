"""Mixers that run in parallel in one layer.

Shapes: B batch, T length, D d_model.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

from torch import Tensor, nn

from archbench.architectures.backbone import Flops
from archbench.architectures.layers.block import Mixer
from archbench.architectures.layers.context import Context


class ParallelMixer(Mixer):
    """Multiple mixers that read the same input; their outputs are added."""

    def __init__(self, mixers: list[Mixer]) -> None:
        super().__init__()
        self.mixers = nn.ModuleList(mixers)

    @property
    def canon_widths(self) -> dict[str, int]:
        """Return no inputs: each of the mixers has its own."""
        return {}

    def _each(self) -> list[Mixer]:
        return [mixer for mixer in self.mixers if isinstance(mixer, Mixer)]

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        return reduce(add, (mixer(x_BTD, context) for mixer in self._each()))

    def start(self, batch_size: int, max_length: int) -> list[Any]:
        return [mixer.start(batch_size, max_length) for mixer in self._each()]

    def step(self, x_BTD: Tensor, state: list[Any], context: Context) -> Tensor:
        pairs = zip(self._each(), state, strict=True)
        return reduce(add, (mixer.step(x_BTD, mixer_state, context) for mixer, mixer_state in pairs))

    def flops(self, length: int) -> Flops:
        return reduce(add, (mixer.flops(length) for mixer in self._each()))

    def step_flops(self, length: int) -> Flops:
        return reduce(add, (mixer.step_flops(length) for mixer in self._each()))

    def state_bytes(self, length: int, bytes_per_element: int) -> int:
        return sum(mixer.state_bytes(length, bytes_per_element) for mixer in self._each())
