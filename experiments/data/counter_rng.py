"""Random values as a pure function of integers.

A counter-based generator (SplitMix64 finaliser, Steele et al. 2014) hashes
``(seed, split, example, slot)`` to 64 bits. No state passes between draws, so
example 10**9 costs the same as example 0 and resuming needs no stored state.
The bits do not depend on the NumPy version.

Shapes: B examples, S slots.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.runtime.seeds import GAMMA, MASK_64, data_order_key, stream

MOST_SCORED = 2**16
"""Options that ``ExampleRNG.distinct`` gives a score each."""


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def bits(key: int, index_B: NDArray[np.int64], slots: int) -> NDArray[np.uint64]:
    """64 random bits for each (example, slot): shape (B, slots)."""
    row_B = _mix(index_B.astype(np.uint64) * np.uint64(GAMMA) + np.uint64(key))
    slot_S = (np.arange(slots, dtype=np.uint64) + np.uint64(1)) * np.uint64(GAMMA)
    return _mix(row_B[:, None] + slot_S[None, :])


def uniform(key: int, index_B: NDArray[np.int64], slots: int) -> NDArray[np.float64]:
    """Uniform random values in the open interval (0, 1), shape (B, slots)."""
    # 52 bits, not 53: with one more, adding a half would round the largest number up to 1.
    return ((bits(key, index_B, slots) >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52


def permute(key: int, position_B: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return the image of each position under a keyed permutation of ``0 .. size - 1``.

    A four-round Feistel network on the next even power of two; positions that
    land outside ``size`` walk on until they are inside.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    low = np.uint64((1 << half) - 1)
    result = position_B.astype(np.uint64)
    pending = np.ones(result.shape, dtype=bool)
    while pending.any():
        high, low_half = result[pending] >> np.uint64(half), result[pending] & low
        for round_ in range(4):
            mixed = _mix(
                low_half * np.uint64(GAMMA) + np.uint64((key + round_ * 0x632BE59BD9B4E019) & MASK_64)
            )
            high, low_half = low_half, high ^ (mixed & low)
        result[pending] = (high << np.uint64(half)) | low_half
        pending &= result >= np.uint64(size)
    return result.astype(np.int64)


def epoch_order(seed: int, index_B: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return the training example, of ``size``, at each index; every epoch has a different order.

    The indices may span epochs.
    """
    epoch_B, position_B = np.divmod(index_B, size)
    order_B = np.empty_like(index_B)
    for epoch in np.unique(epoch_B).tolist():
        in_epoch = epoch_B == epoch
        order_B[in_epoch] = permute(data_order_key(seed, epoch), position_B[in_epoch], size)
    return order_B


@dataclass(frozen=True, kw_only=True)
class ExampleRNG:
    """Random values for a batch of examples: each is a function of seed, split, example, name and slot."""

    seed: int
    split: str
    index_B: NDArray[np.int64]
    """The indices of the examples in their split."""

    def uniform(self, name: str, slots: int) -> NDArray[np.float64]:
        """Return uniform values in the open interval (0, 1), shape (B, S)."""
        return uniform(stream(self.seed, self.split, name), self.index_B, slots)

    def integers(self, name: str, slots: int, high: int | NDArray[np.int64]) -> NDArray[np.int64]:
        """Return uniform integers in [0, high), shape (B, S); ``high`` may differ by example."""
        high_B1 = np.broadcast_to(high, len(self.index_B))[:, None]
        return (self.uniform(name, slots) * high_B1).astype(np.int64)

    def distinct(
        self, name: str, options: int, slots: int, log_weight: NDArray[np.float64] | float = 0.0
    ) -> NDArray[np.int64]:
        """Return integers in [0, options) drawn without replacement, shape (B, S).

        They are drawn by Gumbel top-k, or, from more than ``MOST_SCORED`` options of equal weight, as the
        first images of a permutation, which needs memory for the drawn integers only.

        Args:
            log_weight: logarithms of the weights of the options, (options,) or (B, options); -inf for never.
        """
        if options > MOST_SCORED and np.ndim(log_weight) == 0:
            key_B = bits(stream(self.seed, self.split, name), self.index_B, 1)[:, 0]
            return np.stack([permute(int(key), np.arange(slots), options) for key in key_B])
        score = log_weight - np.log(-np.log(self.uniform(name, options)))
        return np.argsort(-score, axis=1, kind="stable")[:, :slots]

    def rows(self, chosen_B: NDArray[np.bool_]) -> ExampleRNG:
        """Return the random values of some of the examples."""
        return replace(self, index_B=self.index_B[chosen_B])
