"""N-gram models of token sequences, as shallow baselines of languages.

Shapes: B examples, T tokens, V symbols, C contexts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MOST_ENTRIES = 2**20
"""Most entries of a table of counts."""


def ngram_bits(train_BT: NDArray[np.int64], test_BT: NDArray[np.int64], num_symbols: int) -> list[float]:
    """Return the bits per token of the test examples, for contexts of 0, 1, 2, ... tokens.

    Each order interpolates with the next smaller one by the rule of Witten and Bell (1991); order 0 with the
    uniform distribution. Token 0 stands before the first token of an example.
    """
    prob_CV = np.full((1, num_symbols), 1 / num_symbols)
    bits: list[float] = []
    train_context, test_context = np.zeros_like(train_BT), np.zeros_like(test_BT)
    while num_symbols ** (len(bits) + 1) <= MOST_ENTRIES:
        contexts = num_symbols ** len(bits)
        code = (train_context * num_symbols + train_BT).ravel()
        count_CV = np.bincount(code, minlength=contexts * num_symbols).reshape(contexts, num_symbols)
        smaller_CV = np.tile(prob_CV, (contexts // len(prob_CV), 1))
        weight_C1 = (count_CV > 0).sum(1, keepdims=True)
        total_C1 = count_CV.sum(1, keepdims=True)
        mixed_CV = (count_CV + weight_C1 * smaller_CV) / np.maximum(total_C1 + weight_C1, 1)
        prob_CV = np.where(total_C1 > 0, mixed_CV, smaller_CV)
        bits.append(float(-np.log2(prob_CV[test_context, test_BT]).mean()))
        train_context, test_context = (
            _with_earlier(context_BT, tokens_BT, len(bits), num_symbols)
            for context_BT, tokens_BT in ((train_context, train_BT), (test_context, test_BT))
        )
    return bits


def _with_earlier(
    context_BT: NDArray[np.int64], tokens_BT: NDArray[np.int64], distance: int, num_symbols: int
) -> NDArray[np.int64]:
    """Return the contexts with the token at ``distance`` before as their highest digit."""
    earlier_BT = np.zeros_like(tokens_BT)
    earlier_BT[:, distance:] = tokens_BT[:, :-distance]
    return context_BT + earlier_BT * num_symbols ** (distance - 1)
