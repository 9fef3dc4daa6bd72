"""The random numbers that a generated probe makes its examples from.

Shapes: B examples, S slots.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from experiments.data.counter_rng import stream, uniform


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Numbers of some examples of a split under a seed; each is a function of its name, slot and example."""

    seed: int
    split: str
    index_B: NDArray[np.int64]

    def uniform(self, name: str, slots: int) -> NDArray[np.float64]:
        """In the open interval (0, 1), shape (B, S)."""
        return uniform(stream(self.seed, self.split, name), self.index_B, slots)

    def below(self, name: str, slots: int, limit: int | NDArray[np.int64]) -> NDArray[np.int64]:
        """Whole numbers below ``limit`` (one for all examples, or one for each), shape (B, S)."""
        limit_B1 = np.broadcast_to(limit, len(self.index_B))[:, None]
        return (self.uniform(name, slots) * limit_B1).astype(np.int64)

    def distinct(
        self, name: str, options: int, slots: int, log_weight: NDArray[np.float64] | float = 0.0
    ) -> NDArray[np.int64]:
        """Numbers below ``options`` without replacement, by Gumbel top-k, shape (B, S).

        Args:
            log_weight: logarithms of the weights of the options, (options,) or (B, options); -inf for never.
        """
        score = log_weight - np.log(-np.log(self.uniform(name, options)))
        return np.argsort(-score, axis=1, kind="stable")[:, :slots]

    def rows(self, chosen_B: NDArray[np.bool_]) -> Draws:
        """The same numbers of some of the examples."""
        return replace(self, index_B=self.index_B[chosen_B])
