"""The state of incremental decoding: one object for every type of layer.

``Backbone.start`` returns an empty one, and ``Backbone.step`` advances it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(kw_only=True)
class History:
    """Tokens of a decoding state, for models that may have to read them again."""

    rows: list[list[int]]
    """Tokens read so far, for each sequence of the batch."""
    max_length: int
    """Tokens for which the state has space."""


@dataclass(kw_only=True)
class DecodingState:
    """State of incremental decoding: KV caches, convolution windows, recurrent states."""

    lengths: list[int]
    """Tokens read so far, for each sequence of the batch."""
    layers: list[Any]
    """The state of each layer, created and read only by that layer: tensors with the batch first, dicts
    and lists of them, or objects with ``select`` and ``num_bytes``."""
    history: History | None = None
    """The tokens read so far, where a step may have to read them again; None elsewhere."""

    @property
    def length(self) -> int:
        """Tokens read so far by the sequence that has read most."""
        return max(self.lengths, default=0)

    def num_bytes(self) -> int:
        """Return the bytes of the tensors in memory."""
        return _tensor_bytes(self.layers)

    def select(self, rows: list[int]) -> None:
        """Make row i continue what was row ``rows[i]``: rows may be dropped, repeated or reordered.

        Beam search reorders its beams so, and a prompt that is prefilled once can be continued many times.
        """
        self.lengths = [self.lengths[row] for row in rows]
        self.layers = [_select(layer, rows) for layer in self.layers]
        if self.history is not None:
            self.history.rows = [[*self.history.rows[row]] for row in rows]


def _tensor_bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(_tensor_bytes(v) for v in value.values())
    if isinstance(value, list | tuple):
        return sum(_tensor_bytes(v) for v in value)
    return value.num_bytes() if hasattr(value, "num_bytes") else 0


def _select(value: Any, rows: list[int]) -> Any:
    if isinstance(value, Tensor):
        return value[rows]
    if isinstance(value, dict):
        return {name: _select(v, rows) for name, v in value.items()}
    if isinstance(value, list):
        return [_select(v, rows) for v in value]
    return value.select(rows) if hasattr(value, "select") else value
