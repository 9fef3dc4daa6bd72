"""Multi-query associative recall (MQAR): look up the value that followed a key.

Arora et al. 2023, "Zoology" (arXiv 2312.04927), section 4. The context is
``k1 v1 .. kK vK``; in the rest, each key is queried once, and the answer is
its value. The gap between context and query follows a power law.
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
from archbench.experiments.tasks.recall.base import Lookup


@dataclass(frozen=True, kw_only=True)
class RecallConfig(GeneratedConfig):
    """Settings of multi-query associative recall."""

    sequence_length: int = 16
    """Tokens in an example (T); at least four for each pair."""
    num_pairs: int = 4
    """Key-value pairs (K), each queried once."""
    num_symbols: int = 16
    """Symbols (V): 0 is filler, keys come from [1, V/2), values from [V/2, V)."""
    power: float = 0.01
    """Exponent a of the law p(gap) ~ gap^(a-1)."""
    random_filler: bool = False
    """Fill with random symbols, keys and values among them, instead of 0: ``random_non_queries`` of Zoology's
    code, where it is on by default. Its configuration of the paper's figure 2 has it off."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if 4 * self.num_pairs > self.sequence_length:
            raise ValueError(
                f"num_pairs={self.num_pairs} needs sequence_length >= {4 * self.num_pairs}, "
                f"got {self.sequence_length}"
            )
        if self.num_symbols // 2 - 1 < self.num_pairs:
            raise ValueError(
                f"num_symbols={self.num_symbols} gives {self.num_symbols // 2 - 1} keys, "
                f"fewer than num_pairs={self.num_pairs}: use num_symbols >= {2 * self.num_pairs + 2}"
            )
        if self.num_pairs < 1 or self.power <= 0:
            raise ValueError("num_pairs must be at least 1 and power above 0")


class Recall(Lookup):
    """MQAR."""

    Config = RecallConfig
    generator = "recall-1"

    def __init__(self, config: RecallConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.vocabulary = Vocabulary(num_symbols=config.num_symbols, num_sentinels=config.num_pairs)

    def background(self, rng: ExampleRNG) -> NDArray[np.int64]:
        if not self.config.random_filler:
            return super().background(rng)
        return rng.integers("filler", self.sequence_length, self.config.num_symbols)

    def facts(self, rng: ExampleRNG) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        c = self.config
        half = c.num_symbols // 2
        key_BK = 1 + rng.distinct("keys", half - 1, c.num_pairs)
        value_BK = half + rng.distinct("values", c.num_symbols - half, c.num_pairs)
        return np.stack([key_BK, value_BK], axis=2).reshape(len(key_BK), -1), key_BK[:, :, None], value_BK

    def solve(self, context: Sequence[int], positions: Sequence[int]) -> list[int]:
        facts = context[: 2 * self.config.num_pairs]
        value_of = dict(zip(facts[::2], facts[1::2], strict=True))
        return [value_of[context[position - 1]] for position in positions]

    def guesses(self) -> list[Reference]:
        values = self.config.num_symbols - self.config.num_symbols // 2
        return [
            Reference(
                name="random value shown",
                metric=self.metric,
                value=1 / self.config.num_pairs,
                note="what a model reaches that has not learned which key goes with which value",
            ),
            Reference(name="random value", metric=self.metric, value=1 / values, note="chance"),
        ]
