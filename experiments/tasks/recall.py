"""Multi-query associative recall (MQAR): look up the value that followed a key.

Arora et al. 2023, "Zoology" (arXiv 2312.04927), section 4. The context is
``k1 v1 .. kK vK``; in the rest, each key is asked for once, and the answer is
its value. The gap between context and query follows a power law.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.data.random import stream, uniform
from experiments.tasks.probe import Probe, batch_of
from experiments.tasks.task import Batch, Reference, Vocabulary


@dataclass(frozen=True, kw_only=True)
class RecallConfig:
    """Settings of multi-query associative recall."""

    sequence_length: int = 16
    """Tokens in an example (T); at least four for each pair."""
    num_pairs: int = 4
    """Key-value pairs (K), each asked for once."""
    num_symbols: int = 16
    """Symbols (V): 0 is filler, keys come from [1, V/2), values from [V/2, V)."""
    power: float = 0.01
    """Exponent a of the law p(gap) ~ gap^(a-1)."""

    def __post_init__(self) -> None:
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


class Recall(Probe):
    """MQAR."""

    Config = RecallConfig
    generator = "recall-1"

    def __init__(self, config: RecallConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.vocabulary = Vocabulary(num_symbols=config.num_symbols, num_sentinels=config.num_pairs)

    def batch(self, split: str, seed: int, start: int, count: int) -> Batch:
        c = self.config
        index_B = np.arange(start, start + count, dtype=np.int64)
        half, slots = c.num_symbols // 2, (c.sequence_length - 2 * c.num_pairs) // 2

        def draw(what: str, options: int, log_weight: np.ndarray | float = 0.0) -> np.ndarray:
            """K of ``options`` without replacement, by Gumbel top-k."""
            u = uniform(stream(seed, split, what), index_B, options)
            scores = log_weight - np.log(-np.log(u))
            return np.argsort(-scores, axis=1, kind="stable")[:, : c.num_pairs]

        key_BK = 1 + draw("keys", half - 1)
        value_BK = half + draw("values", c.num_symbols - half)
        gap_BK = draw("gaps", slots, (c.power - 1) * np.log(np.arange(1, slots + 1)))

        context_BT = np.zeros((count, c.sequence_length), dtype=np.int64)
        context_BT[:, 0 : 2 * c.num_pairs : 2] = key_BK
        context_BT[:, 1 : 2 * c.num_pairs : 2] = value_BK
        query_BK = 2 * c.num_pairs + 2 * gap_BK
        np.put_along_axis(context_BT, query_BK, key_BK, axis=1)
        tokens_BT = context_BT.copy()
        np.put_along_axis(tokens_BT, query_BK + 1, value_BK, axis=1)
        answer_BT = np.zeros((count, c.sequence_length), dtype=bool)
        np.put_along_axis(answer_BT, query_BK + 1, True, axis=1)

        return batch_of(tokens_BT, context_BT, answer_BT)

    def references(self) -> list[Reference]:
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
