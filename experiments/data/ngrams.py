"""N-gram models of bytes with Witten-Bell smoothing: trivial baselines of a text.

The model of order k predicts a symbol from the k - 1 symbols before it. It interpolates with the model of
order k - 1, which has the weight of the number of distinct symbols that followed the context in training
(Witten and Bell 1991, method C; Chen and Goodman 1999, section 2.6):

    p_k(w | c) = (count(c, w) + distinct(c) * p_(k-1)(w | c')) / (count(c) + distinct(c))

The model of order 0 gives every symbol the same probability. A context that never occurred has the
probabilities of the order below.

In a text of bytes, symbols are the bytes 0 to 255 and ``END``, which ends a document, so that models pay for
the same events as a language model that predicts the end of each document.

Shapes: R, S texts of N training and M test symbols, K orders.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.token_stream import TokenStream

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
    probability_K1M = witten_bell(train_N[None], test_M[None], HIGHEST_ORDER, num_symbols=SYMBOLS, begin=END)
    bits_K = -np.log2(probability_K1M).sum(axis=(1, 2))
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


def witten_bell(
    train_RN: Symbols, test_SM: Symbols, order: int, *, num_symbols: int, begin: int
) -> NDArray[np.float64]:
    """Return the probability of each test symbol (K, S, M) under the models of order 1 to ``order``.

    Rows are separate texts.

    Args:
        train_RN: symbols below ``num_symbols``, counted in training.
        test_SM: symbols to score.
        begin: the symbol that counts as the one before the first of a row.
    """
    probability_SM = np.full(test_SM.shape, 1 / num_symbols)
    orders = []
    for context_length in range(order):
        train_grams_RN, test_grams_SM = (
            _codes(text, context_length, num_symbols, begin) for text in (train_RN, test_SM)
        )
        grams, counts = np.unique(train_grams_RN, return_counts=True)
        contexts, first = np.unique(grams // num_symbols, return_index=True)  # grams of one are adjacent
        distinct = np.diff(first, append=len(grams))
        total = np.add.reduceat(counts, first)
        count_SM = _look_up(grams, counts, test_grams_SM)
        distinct_SM = _look_up(contexts, distinct, test_grams_SM // num_symbols)
        total_SM = _look_up(contexts, total, test_grams_SM // num_symbols)
        mixed_SM = (count_SM + distinct_SM * probability_SM) / np.maximum(total_SM + distinct_SM, 1)
        probability_SM = np.where(total_SM > 0, mixed_SM, probability_SM)
        orders.append(probability_SM)
    return np.stack(orders)


def _codes(symbols_RN: Symbols, context_length: int, num_symbols: int, begin: int) -> Symbols:
    """Return one number for each symbol with its context: digits in base ``num_symbols``, the symbol last."""
    padded = np.pad(symbols_RN, ((0, 0), (context_length, 0)), constant_values=begin)
    codes_RN = np.zeros_like(symbols_RN)
    for offset in range(context_length + 1):
        codes_RN = codes_RN * num_symbols + padded[:, offset : offset + symbols_RN.shape[1]]
    return codes_RN


def _look_up(keys: Symbols, values: NDArray[np.integer], wanted_SM: Symbols) -> NDArray[np.int64]:
    """Return the value of each wanted key, 0 where it is missing; ``keys`` are sorted."""
    index_SM = np.minimum(np.searchsorted(keys, wanted_SM), len(keys) - 1)
    return np.where(keys[index_SM] == wanted_SM, values[index_SM], 0)
