"""Induction heads: what followed the special symbol the first time?

Olsson et al. 2022 (arXiv 2209.11895); in the form of Gu and Dao 2023 ("Mamba",
arXiv 2312.00752, section 4.1.2 and table 11), itself that of H3 (arXiv
2212.14052): a random sequence holds the special symbol once, and again at the
end; the answer is the symbol that followed it. Trained at one length, read at many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.counter_rng import uniform
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.runtime.seeds import stream
from archbench.experiments.tasks.metrics import Reference
from archbench.experiments.tasks.probes.probe import GeneratedConfig, Probe, batch_of
from archbench.experiments.tasks.task import Batch


@dataclass(frozen=True, kw_only=True)
class InductionConfig(GeneratedConfig):
    """Settings of induction heads."""

    sequence_length: int = 64
    """Tokens in an example (T), the answer included; at least four."""
    num_symbols: int = 16
    """Symbols (V): V-1 is the special one, the rest are ordinary."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sequence_length < 4 or self.num_symbols < 3:
            raise ValueError(
                f"sequence_length={self.sequence_length} must be at least 4 and "
                f"num_symbols={self.num_symbols} at least 3"
            )


class Induction(Probe):
    """Induction heads."""

    Config = InductionConfig
    generator = "induction-1"

    def __init__(self, config: InductionConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.vocabulary = Vocabulary(num_symbols=config.num_symbols, num_sentinels=1)

    def examples(self, split: str, seed: int, index_B: NDArray[np.int64]) -> Batch:
        c = self.config
        ordinary_BT = uniform(stream(seed, split, "symbols"), index_B, c.sequence_length)
        tokens_BT = (ordinary_BT * (c.num_symbols - 1)).astype(np.int64)
        # The special symbol and its successor are both before the question.
        place_B1 = (uniform(stream(seed, split, "place"), index_B, 1) * (c.sequence_length - 3)).astype(int)
        np.put_along_axis(tokens_BT, place_B1, c.num_symbols - 1, axis=1)
        tokens_BT[:, -2] = c.num_symbols - 1
        tokens_BT[:, -1:] = np.take_along_axis(tokens_BT, place_B1 + 1, axis=1)

        context_BT = tokens_BT.copy()
        context_BT[:, -1] = 0
        answer_BT = np.zeros(tokens_BT.shape, dtype=bool)
        answer_BT[:, -1] = True
        return batch_of(tokens_BT, context_BT, answer_BT)

    def solve(self, context: Sequence[int], positions: Sequence[int]) -> list[int]:
        return [context[list(context).index(context[position - 1]) + 1] for position in positions]

    def guesses(self) -> list[Reference]:
        return [
            Reference(
                name="random symbol",
                metric=self.metric,
                value=1 / (self.config.num_symbols - 1),
                note="chance",
            )
        ]
