"""N-gram models of token sequences, as shallow baselines of languages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.ngrams import witten_bell

MOST_ENTRIES = 2**20
"""Most n-grams of the highest order."""


def ngram_bits(train_BT: NDArray[np.int64], test_BT: NDArray[np.int64], num_symbols: int) -> list[float]:
    """Return the bits per token of the test examples (B, T), for contexts of 0, 1, 2, ... tokens.

    The models are those of ``experiments.data.ngrams``. Token 0 counts as the one before an example.
    """
    order = 1
    while num_symbols ** (order + 1) <= MOST_ENTRIES:
        order += 1
    probability_KBT = witten_bell(train_BT, test_BT, order, num_symbols=num_symbols, begin=0)
    return [float(bits) for bits in -np.log2(probability_KBT).mean(axis=(1, 2))]
