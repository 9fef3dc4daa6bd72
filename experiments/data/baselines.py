"""Bits per byte of simple statistics on a text: reference lines for a model's bits per byte."""

from __future__ import annotations

import lzma

import numpy as np
from numpy.typing import NDArray

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
