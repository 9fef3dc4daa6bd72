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

    def is_symbol(self) -> Tensor:
        """True (V,) at the task's symbols, False at the special tokens."""
        return torch.arange(self.size) < self.num_symbols

    def sentinel(self, index: int) -> int:
        """The id of the ``index``-th sentinel, counted from the last id downwards."""
        if not 0 <= index < self.num_sentinels:
            raise ValueError(f"sentinel {index} asked for, {self.num_sentinels} exist")
        return self.size - 1 - index
