"""Recall with updates: some keys get a second value, and the newest counts.

``forgetting_mqar`` of Zoology (github.com/HazyResearch/zoology): ``k1 v1 .. kK vK``, then U of the keys
again, each with another value; then each key is queried once. A state that only adds has to overwrite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.counter_rng import ExampleRNG
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.tasks.metrics import Reference
from archbench.experiments.tasks.probes.probe import GeneratedConfig
from archbench.experiments.tasks.recall.base import Lookup, check_positive, check_room


@dataclass(frozen=True, kw_only=True)
class ForgettingRecallConfig(GeneratedConfig):
    """Settings of recall with updates."""

    sequence_length: int = 32
    """Tokens in an example (T); at least 4K + 2U."""
    num_pairs: int = 4
    """Keys (K), each queried once."""
    num_updates: int = 2
    """Keys that get another value (U); at most K."""
    num_symbols: int = 32
    """Symbols (V): 0 is filler, keys come from [1, V/2), values from [V/2, V)."""
    power: float = 0.01
    """Exponent a of the law p(gap) ~ gap^(a-1)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_pairs", "num_updates", "power")
        check_room(self.sequence_length, 2 * (self.num_pairs + self.num_updates), self.num_pairs, 1)
        if self.num_updates > self.num_pairs:
            raise ValueError(f"num_updates={self.num_updates} must be at most num_pairs={self.num_pairs}")
        needed = 2 * (self.num_pairs + self.num_updates)
        if self.num_symbols < needed + 2:
            raise ValueError(f"num_symbols={self.num_symbols} must be at least {needed + 2}")


class ForgettingRecall(Lookup):
    """Each value is drawn once, so that an old one is never right."""

    Config = ForgettingRecallConfig
    generator = "forgetting-recall-1"

    def __init__(self, config: ForgettingRecallConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.vocabulary = Vocabulary(num_symbols=config.num_symbols, num_sentinels=config.num_pairs)

    def facts(self, rng: ExampleRNG) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        c = self.config
        half, pairs = c.num_symbols // 2, c.num_pairs
        key_BK = 1 + rng.distinct("keys", half - 1, pairs)
        value_BJ = half + rng.distinct("values", c.num_symbols - half, pairs + c.num_updates)
        updated_BU = rng.distinct("updates", pairs, c.num_updates)
        key_BJ = np.concatenate([key_BK, np.take_along_axis(key_BK, updated_BU, axis=1)], axis=1)
        newest_BK = value_BJ[:, :pairs].copy()
        np.put_along_axis(newest_BK, updated_BU, value_BJ[:, pairs:], axis=1)
        return np.stack([key_BJ, value_BJ], axis=2).reshape(len(key_BJ), -1), key_BK[:, :, None], newest_BK

    def solve(self, context: Sequence[int], positions: Sequence[int]) -> list[int]:
        newest = {}
        for position in range(0, 2 * (self.config.num_pairs + self.config.num_updates), 2):
            newest[context[position]] = context[position + 1]
        return [newest[context[position - 1]] for position in positions]

    def guesses(self) -> list[Reference]:
        c = self.config
        return [
            Reference(
                name="the first value",
                metric=self.metric,
                value=1 - c.num_updates / c.num_pairs,
                note="what a model reaches that never overwrites",
            ),
            Reference(name="random value shown", metric=self.metric, value=1 / (c.num_pairs + c.num_updates)),
        ]
