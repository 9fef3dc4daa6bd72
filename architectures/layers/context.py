"""The context that the layers of one forward pass share.

Shapes: B batch, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Value = TypeVar("Value")


@dataclass(kw_only=True)
class Context:
    """Validity, positions and documents of the tokens, and what is computed once for all layers."""

    positions_BT: Tensor
    """Position of each token in its document; (1, T) where all rows agree."""
    valid_BT: Tensor | None = None
    """False at padding on the right; None when all tokens are real."""
    documents_BT: Tensor | None = None
    """The document of each token; None where a row is one document."""
    start: int | None = 0
    """Position of the first token, where all rows begin at the same one; None where they differ."""
    lengths: list[int] | None = None
    """For an unpadded batch, one row of documents laid end to end: their lengths."""
    score_bias: nn.Module | None = None
    """Module that turns positions of queries and keys into a bias of the attention scores; None for none."""
    visible: Tensor | None = None
    """True where a query may attend, broadcastable to (B, 1, T, T), in addition to positions and documents;
    None for no further mask."""
    reach_BT: Tensor | None = None
    """The last position that each token may attend to, where decoding looks ahead; None for the token
    itself."""
    rotary_BT: Tensor | None = None
    """Positions of the tokens for rotary embeddings, where they differ from ``positions_BT``."""
    carried: dict[str, Tensor] = field(default_factory=dict)
    """Tensors that a layer hands to all later ones, by name. Unlike what ``once`` keeps, they are no function
    of the context."""
    carried_mirrored: dict[str, Tensor] = field(default_factory=dict)
    """The same for layers that read the mirrored sequence."""
    windows: dict[str, Tensor] | None = None
    """In a decoding step of a block, the previous inputs of its canon layers, which advance in place; None
    for full sequences."""
    _made: dict[Hashable, Any] = field(default_factory=dict)

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return ``make()`` the first time, the same value for every later layer with the same ``key``."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def length_BT(self) -> Tensor:
        """Return the length of the sequence of each token, up to the last token read; (B or 1, T or 1)."""
        if self.documents_BT is not None:
            same_BTS = self.documents_BT[:, :, None] == self.documents_BT[:, None, :]
            return (same_BTS if self.valid_BT is None else same_BTS & self.valid_BT[:, None, :]).sum(-1)
        if self.lengths is not None:
            length_N = torch.tensor(self.lengths, device=self.positions_BT.device)
            return length_N.repeat_interleave(length_N)[None]
        read_BT = self.positions_BT + 1
        return (read_BT if self.valid_BT is None else read_BT * self.valid_BT).amax(1, keepdim=True)

    @classmethod
    def whole(
        cls,
        tokens_BT: Tensor,
        valid_BT: Tensor | None,
        documents_BT: Tensor | None,
        score_bias: nn.Module | None = None,
    ) -> Context:
        """Return the context of full sequences, read from their beginning."""
        index_1T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None]
        positions_BT = index_1T if documents_BT is None else restart(documents_BT, index_1T)
        return cls(
            positions_BT=positions_BT, valid_BT=valid_BT, documents_BT=documents_BT, score_bias=score_bias
        )

    @classmethod
    def next(
        cls,
        tokens_BT: Tensor,
        lengths: list[int],
        valid_BT: Tensor | None,
        score_bias: nn.Module | None = None,
    ) -> Context:
        """Return the context of the tokens that follow the first ``lengths`` of each row."""
        index_1T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None]
        if len(set(lengths)) == 1 and valid_BT is None:
            return cls(positions_BT=lengths[0] + index_1T, start=lengths[0], score_bias=score_bias)
        read_B1 = torch.tensor(lengths, device=tokens_BT.device)[:, None]
        return cls(positions_BT=read_B1 + index_1T, valid_BT=valid_BT, start=None, score_bias=score_bias)

    @property
    def plain(self) -> bool:
        """True for full sequences of one document each, without padding."""
        unmasked = self.valid_BT is None and self.documents_BT is None and self.visible is None
        return self.start == 0 and unmasked


def restart(documents_BT: Tensor, index_1T: Tensor) -> Tensor:
    """Return positions (B, T) that count from 0 in each document."""
    new_BT = torch.ones_like(documents_BT, dtype=torch.bool)
    new_BT[:, 1:] = documents_BT[:, 1:] != documents_BT[:, :-1]
    first_BT = torch.where(new_BT, index_1T, 0).cummax(dim=1).values
    return index_1T - first_BT
