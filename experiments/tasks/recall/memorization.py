"""Memorization of MAD: a table of keys and values that is in no context, only learned.

Poli et al. 2024 (MAD, arXiv 2403.17844; github.com/athms/mad-lab): ``key ? key ? ...``, where
each question mark is the value of its key in a table that is the same in all examples of all splits. It
tests facts in the weights, not in the context: the complete table is learned from the training split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.counter_rng import ExampleRNG, permute
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.runtime.seeds import stream
from archbench.experiments.tasks.metrics import Reference
from archbench.experiments.tasks.probes.probe import GeneratedConfig, Probe, batch_of
from archbench.experiments.tasks.task import Batch

FILLER = 0
SENTINELS = 128
"""Largest number of answers that an encoder-decoder can generate for one example."""


@dataclass(frozen=True, kw_only=True)
class MemorizationConfig(GeneratedConfig):
    """Settings of memorization."""

    sequence_length: int = 32
    """Tokens in an example (T), an even number: key and value in turn."""
    num_symbols: int = 256
    """Symbols (V), the filler among them: as many keys as values, (V - 1) // 2."""
    table_seed: int = 12345
    """Seed of the table to be learned."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sequence_length < 2 or self.sequence_length % 2:
            raise ValueError(f"sequence_length={self.sequence_length} must be even and positive")
        if self.num_symbols < 5:
            raise ValueError(f"num_symbols={self.num_symbols} must be at least 5")


class Memorization(Probe):
    """Keys from [1, 1+K), values after them; the table is a permutation."""

    Config = MemorizationConfig
    generator = "memorization-1"

    def __init__(self, config: MemorizationConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.num_keys = (config.num_symbols - 1) // 2
        self.vocabulary = Vocabulary(num_symbols=config.num_symbols, num_sentinels=SENTINELS)

    def examples(self, split: str, seed: int, index_B: NDArray[np.int64]) -> Batch:
        rng = ExampleRNG(seed=seed, split=split, index_B=index_B)
        key_BP = rng.integers("keys", self.sequence_length // 2, self.num_keys)
        table = stream("memorization", self.config.table_seed)
        value_K = permute(table, np.arange(self.num_keys), self.num_keys)
        context_BT = np.full((len(index_B), self.sequence_length), FILLER, dtype=np.int64)
        context_BT[:, ::2] = 1 + key_BP
        tokens_BT = context_BT.copy()
        tokens_BT[:, 1::2] = 1 + self.num_keys + value_K[key_BP]
        answer_BT = np.zeros(tokens_BT.shape, dtype=bool)
        answer_BT[:, 1::2] = True
        return batch_of(tokens_BT, context_BT, answer_BT)

    @cached_property
    def _read(self) -> dict[int, int]:
        """The table, from training examples that are read until every key has occurred."""
        table: dict[int, int] = {}
        start = 0
        while len(table) < self.num_keys:
            tokens = self.examples("train", 0, np.arange(start, start + 64)).tokens_BT
            table.update(
                zip(tokens[:, ::2].flatten().tolist(), tokens[:, 1::2].flatten().tolist(), strict=True)
            )
            start += 64
        return table

    def solve(self, context: Sequence[int], positions: Sequence[int]) -> list[int]:
        """Answer from the training split, because the answers are not in the context."""
        return [self._read[context[position - 1]] for position in positions]

    def guesses(self) -> list[Reference]:
        return [Reference(name="random value", metric=self.metric, value=1 / self.num_keys, note="chance")]
