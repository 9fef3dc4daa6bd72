"""Recall by two keys together: neither of them determines the value by itself.

``compositional_mqar`` of Zoology (github.com/HazyResearch/zoology): S first keys and S second keys make a
grid of S^2 pairs, each with a value, in random order as ``first second value``. Then each pair
is queried once.
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
class CompositionalRecallConfig(GeneratedConfig):
    """Settings of recall by two keys."""

    sequence_length: int = 32
    """Tokens in an example (T); at least 6 S^2."""
    side: int = 2
    """First keys, and second keys (S): S^2 pairs."""
    num_symbols: int = 24
    """Symbols (V): 0 is filler; first keys, second keys and values come from a third each."""
    power: float = 0.01
    """Exponent a of the law p(gap) ~ gap^(a-1)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "power")
        if self.side < 2:
            raise ValueError(f"side={self.side} must be at least 2: with 1, either key is enough")
        check_room(self.sequence_length, 3 * self.side**2, self.side**2, 2)
        if self.num_symbols // 3 < self.side**2:
            raise ValueError(f"num_symbols={self.num_symbols} must be at least {3 * self.side**2}")


class CompositionalRecall(Lookup):
    """A grid of pairs of keys."""

    Config = CompositionalRecallConfig
    generator = "compositional-recall-1"

    def __init__(self, config: CompositionalRecallConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.vocabulary = Vocabulary(num_symbols=config.num_symbols, num_sentinels=config.side**2)

    def facts(self, rng: ExampleRNG) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        num_keys, third = self.config.side, self.config.num_symbols // 3
        pairs = num_keys**2
        first_BS = 1 + rng.distinct("first", third - 1, num_keys)
        second_BS = third + rng.distinct("second", third, num_keys)
        value_BK = 2 * third + rng.distinct("values", self.config.num_symbols - 2 * third, pairs)
        cell_BK = rng.distinct("order", pairs, pairs)
        key_BK2 = np.stack(
            [
                np.take_along_axis(first_BS, cell_BK // num_keys, axis=1),
                np.take_along_axis(second_BS, cell_BK % num_keys, axis=1),
            ],
            axis=2,
        )
        facts_BK3 = np.concatenate([key_BK2, value_BK[:, :, None]], axis=2)
        return facts_BK3.reshape(len(facts_BK3), -1), key_BK2, value_BK

    def solve(self, context: Sequence[int], positions: Sequence[int]) -> list[int]:
        value_of = {}
        for position in range(0, 3 * self.config.side**2, 3):
            first_key, second_key, value = context[position : position + 3]
            value_of[first_key, second_key] = value
        return [value_of[context[position - 2], context[position - 1]] for position in positions]

    def guesses(self) -> list[Reference]:
        num_keys = self.config.side
        return [
            Reference(
                name="one key of two",
                metric=self.metric,
                value=1 / num_keys,
                note="what a model reaches that looks one of the keys up",
            ),
            Reference(name="random value shown", metric=self.metric, value=1 / num_keys**2),
        ]
