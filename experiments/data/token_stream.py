"""The tokens of a split in the order of its documents, their text, and simple statistics of them.

Shapes: N tokens of a split, P passages, V vocabulary.
"""

from __future__ import annotations

import lzma
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.counter_rng import permute
from archbench.experiments.data.tokenizers.tokenizer import TextTokenizer
from archbench.experiments.runtime.seeds import stream

PASSAGE = 1024
"""Tokens of the passages of a text: of those that ``passages`` picks, and of the clusters of a split that is
one document."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenStream:
    """Tokens and their text, all of it or passages of it."""

    tokens_N: NDArray[np.integer]
    tokenizer: TextTokenizer
    bytes_N: NDArray[np.uint32] | None
    """Bytes of text of each token; None where the tokenizer has fixed ones."""
    text: NDArray[np.uint8] | None
    """The text in UTF-8; None where the tokens spell it."""

    def __len__(self) -> int:
        return len(self.tokens_N)

    def num_bytes(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of text of the tokens at some positions."""
        if self.bytes_N is not None:
            return self.bytes_N[places].astype(np.int64)
        assert self.tokenizer.fixed_bytes_V is not None
        return self.tokenizer.fixed_bytes_V[self.tokens_N[places]].astype(np.int64)

    def text_of(self, begin: int, end: int) -> bytes:
        """Return the text of the tokens ``begin`` to ``end`` (not included)."""
        if self.text is not None:
            return self.text[self._offset(begin) : self._offset(end)].tobytes()
        return b"".join(map(self.tokenizer.token_bytes.__getitem__, self.tokens_N[begin:end].tolist()))

    def _offset(self, index: int) -> int:
        """Return the bytes of text before a token."""
        assert self.bytes_N is not None
        passage = index // PASSAGE
        return int(self._passage_offset_P[passage] + self.bytes_N[passage * PASSAGE : index].sum())

    @cached_property
    def _passage_offset_P(self) -> NDArray[np.int64]:
        """The bytes of text before each passage, and before the end."""
        assert self.bytes_N is not None
        begins = np.arange(0, len(self), PASSAGE)
        return np.concatenate([[0], np.cumsum(np.add.reduceat(self.bytes_N, begins, dtype=np.int64))])

    def passages(self, limit: int) -> TokenStream:
        """Return ``limit`` tokens, or all if there are fewer: passages in a fixed random order.

        The last one is cut.
        """
        count = -(-len(self) // PASSAGE)
        order = permute(stream("passages"), np.arange(min(count, limit // PASSAGE + 2)), count)
        spans, remaining = [], limit
        for begin in (order * PASSAGE).tolist():
            end = min(begin + PASSAGE, len(self), begin + remaining)
            spans.append((begin, end))
            remaining -= end - begin
        text = b"".join(self.text_of(*span) for span in spans) if self.text is not None else None
        return TokenStream(
            tokens_N=np.concatenate([self.tokens_N[slice(*span)] for span in spans]),
            tokenizer=self.tokenizer,
            bytes_N=None
            if self.bytes_N is None
            else np.concatenate([self.bytes_N[slice(*s)] for s in spans]),
            text=None if text is None else np.frombuffer(text, dtype=np.uint8),
        )


XZ_LIMIT = 8_000_000
"""Bytes of text given to xz at most: the last of the training text, the first of the test text."""


def unigram_bits_per_byte(
    train_count_V: NDArray[np.int64], test_count_V: NDArray[np.int64], num_bytes: int
) -> float:
    """Bits per byte of the test tokens under the training frequencies, one added to every count.

    Args:
        train_count_V, test_count_V: occurrences of each token id.
        num_bytes: bytes of the text of the test tokens.
    """
    probability_V = (train_count_V + 1) / (train_count_V.sum() + len(train_count_V))
    return float(-(test_count_V * np.log2(probability_V)).sum() / num_bytes)


def xz_bits_per_byte(train: bytes, test: bytes) -> float:
    """Bits per byte that xz needs for the test text when it has just read the training text."""

    def size(data: bytes) -> int:
        return len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))

    train, test = train[-XZ_LIMIT:], test[:XZ_LIMIT]
    return (size(train + test) - size(train)) * 8 / len(test)
