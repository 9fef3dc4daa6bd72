"""N-gram models of bytes with Witten-Bell smoothing: trivial baselines of a text.

The model of order k predicts a symbol from the k - 1 symbols before it. It interpolates with the model of
order k - 1, which has the weight of the number of distinct symbols that followed the context in training
(Witten and Bell 1991, method C; Chen and Goodman 1999, section 2.6):

    p_k(w | c) = (count(c, w) + distinct(c) * p_(k-1)(w | c')) / (count(c) + distinct(c))

The model of order 0 gives every symbol the same probability. A context that never occurred has the
probabilities of the order below.

Symbols are the bytes 0 to 255 and ``END``, which ends a document, so that models pay for the same events as a
language model that predicts the end of each document. Shapes: N training symbols, M test symbols, K orders.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from experiments.data.token_stream import TokenStream

END = 256
SYMBOLS = 257
HIGHEST_ORDER = 5
"""Order of the larger of the two models that are reported; ``BIGRAM`` is the smaller."""
BIGRAM = 2
NGRAM_LIMIT = 16_000_000
"""Maximum number of tokens of each text: the last of the training text, the first of the test text."""

Symbols = NDArray[np.int64]


def ngram_bits_per_byte(train: TokenStream, test: TokenStream) -> dict[str, float]:
    """Return the bits per byte of the test text under a bigram and a 5-gram model of the training bytes."""
    train_N = symbols(train, max(0, len(train) - NGRAM_LIMIT), len(train))
    test_M = symbols(test, 0, min(NGRAM_LIMIT, len(test)))
    bits_K = -np.log2(witten_bell(train_N, test_M, HIGHEST_ORDER)).sum(axis=1)
    num_bytes = int((test_M != END).sum())
    return {
        "bigram": float(bits_K[BIGRAM - 1] / num_bytes),
        f"{HIGHEST_ORDER}-gram": float(bits_K[HIGHEST_ORDER - 1] / num_bytes),
    }


def symbols(stream: TokenStream, begin: int, end: int) -> Symbols:
    """Return the bytes of the tokens ``begin`` to ``end`` (not included); ``END`` ends each document."""
    text = np.frombuffer(stream.text_of(begin, end), dtype=np.uint8).astype(np.int64)
    bytes_before = np.cumsum(stream.num_bytes(np.arange(begin, end)))
    is_end = stream.tokens_N[begin:end] == stream.tokenizer.vocabulary.eos
    return np.insert(text, bytes_before[is_end], END)


def witten_bell(train_N: Symbols, test_M: Symbols, order: int) -> NDArray[np.float64]:
    """Return the probability of each test symbol (K, M) under the models of order 1 to ``order``.

    The text before the first symbol counts as ends of documents.
    """
    probability_M = np.full(len(test_M), 1 / SYMBOLS)
    orders = []
    for context_length in range(order):
        grams, counts = np.unique(_codes(train_N, context_length), return_counts=True)
        contexts, first = np.unique(grams // SYMBOLS, return_index=True)  # grams of a context are adjacent
        distinct = np.diff(first, append=len(grams))
        total = np.add.reduceat(counts, first)
        test_grams_M = _codes(test_M, context_length)
        count_M = _look_up(grams, counts, test_grams_M)
        distinct_M = _look_up(contexts, distinct, test_grams_M // SYMBOLS)
        total_M = _look_up(contexts, total, test_grams_M // SYMBOLS)
        mixed_M = (count_M + distinct_M * probability_M) / np.maximum(total_M + distinct_M, 1)
        probability_M = np.where(total_M > 0, mixed_M, probability_M)
        orders.append(probability_M)
    return np.stack(orders)


def _codes(symbols_N: Symbols, context_length: int) -> Symbols:
    """Return one number for each symbol with its context: digits in base ``SYMBOLS``, the symbol last."""
    padded = np.concatenate([np.full(context_length, END), symbols_N])
    codes_N = np.zeros(len(symbols_N), dtype=np.int64)
    for offset in range(context_length + 1):
        codes_N = codes_N * SYMBOLS + padded[offset : offset + len(symbols_N)]
    return codes_N


def _look_up(keys: Symbols, values: NDArray[np.integer], wanted_M: Symbols) -> NDArray[np.int64]:
    """Return the value of each wanted key, 0 where it is missing; ``keys`` are sorted."""
    index_M = np.minimum(np.searchsorted(keys, wanted_M), len(keys) - 1)
    return np.where(keys[index_M] == wanted_M, values[index_M], 0)
