"""The vocabulary of a task: which token ids are symbols, and which are special tokens.

Shapes: V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Token ids: the task's symbols first, then the special tokens every objective may use.

    ``size`` counts them all and is the same for every backbone of a comparison.
    Sentinels (for span corruption) descend from the last id, as in T5.
    """

    num_symbols: int
    num_sentinels: int

    @property
    def pad(self) -> int:
        return self.num_symbols

    @property
    def bos(self) -> int:
        return self.num_symbols + 1

    @property
    def eos(self) -> int:
        return self.num_symbols + 2

    @property
    def mask(self) -> int:
        return self.num_symbols + 3

    @property
    def size(self) -> int:
        return self.num_symbols + 4 + self.num_sentinels

    @property
    def begin(self) -> tuple[int, ...]:
        """The tokens before the first one of a text that a model reads from left to right."""
        return (self.bos,)

    @property
    def end(self) -> tuple[int, ...]:
        """The tokens after a text that a model reads at once."""
        return (self.eos,)

    @property
    def pair_frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens before and after each text of a pair that an encoder-decoder reads and generates."""
        return (), (self.eos,)

    @property
    def stops(self) -> tuple[int, ...]:
        """The tokens that end a generated text."""
        return (self.eos,)

    @property
    def decoder_start(self) -> int:
        """The token that the decoder of an encoder-decoder starts from: the padding token, as in T5."""
        return self.pad

    def may_be_written(self) -> Tensor:
        """True (V,) at the tokens that a model may generate; those that end a text come on top."""
        return self.is_symbol()

    def is_symbol(self) -> Tensor:
        """True (V,) at the task's symbols, False at the special tokens."""
        return torch.arange(self.size) < self.num_symbols

    def sentinel(self, index: int) -> int:
        """The id of the ``index``-th sentinel, counted from the last id downwards."""
        if not 0 <= index < self.num_sentinels:
            raise ValueError(f"sentinel {index} requested, {self.num_sentinels} exist")
        return self.size - 1 - index
