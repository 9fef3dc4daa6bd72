"""Infilling: blanks in the middle, each determined by the symbol before it, after it, or by both.

It measures what a model that reads from left to right cannot know, and what it gains if it reads the end
first: the fill-in-the-middle order of Bavarian et al. 2022 (arXiv 2207.14255). A synthetic task with exact
answers: 2N random symbols before the middle and 2N after it; the middle is N times a cue and a blank, and
the cue determines how to fill the blank.

Shapes: B examples, N blanks, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.counter_rng import uniform
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.runtime.errors import nearest
from archbench.experiments.runtime.seeds import stream
from archbench.experiments.tasks.metrics import Reference
from archbench.experiments.tasks.probes.probe import GeneratedConfig, Probe, batch_of
from archbench.experiments.tasks.task import Batch

ORDERS = ("natural", "suffix_first")
CUES = ("before", "after", "both")


@dataclass(frozen=True, kw_only=True)
class InfillingConfig(GeneratedConfig):
    """Settings of infilling."""

    sequence_length: int = 24
    """Tokens in an example (T): before, middle and after, 2N each, so a multiple of six."""
    num_symbols: int = 8
    """Symbols (V) of contexts and answers."""
    order: str = "natural"
    """``natural`` (before, middle, after) or ``suffix_first`` (after, before, middle), which lets a model
    that reads from left to right see both sides of the blanks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sequence_length < 6 or self.sequence_length % 6:
            near = max(6, self.sequence_length // 6 * 6)
            raise ValueError(
                f"sequence_length={self.sequence_length} must be a multiple of six: take {near} or {near + 6}"
            )
        if self.num_symbols < 2:
            raise ValueError(f"num_symbols={self.num_symbols} must be at least 2")
        if self.order not in ORDERS:
            raise ValueError(f"order={self.order!r} is unknown{nearest(self.order, ORDERS)}")


class Infilling(Probe):
    """``p1 .. p2N  c1 a1 .. cN aN  s1 .. s2N``; by the cue ci, ai is p2i, s2i or their sum modulo V.

    Later positions do not see the answers.
    """

    Config = InfillingConfig
    generator = "infilling-1"

    def __init__(self, config: InfillingConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.num_blanks = config.sequence_length // 6
        # Symbol 0 is the noise token, 1 .. V are symbols, then come the cues.
        self.vocabulary = Vocabulary(
            num_symbols=1 + config.num_symbols + len(CUES), num_sentinels=self.num_blanks
        )

    def examples(self, split: str, seed: int, index_B: NDArray[np.int64]) -> Batch:
        N, V = self.num_blanks, self.config.num_symbols

        def draw(name: str, width: int, options: int) -> np.ndarray:
            return (uniform(stream(seed, split, name), index_B, width) * options).astype(np.int64)

        before_B2N, after_B2N = draw("before", 2 * N, V), draw("after", 2 * N, V)
        cue_BN = draw("cues", N, len(CUES))
        left_BN, right_BN = before_B2N[:, 1::2], after_B2N[:, 1::2]
        answer_BN = np.choose(cue_BN, [left_BN, right_BN, (left_BN + right_BN) % V])

        middle_B2N = np.zeros((len(index_B), 2 * N), dtype=np.int64)
        middle_B2N[:, ::2] = 1 + V + cue_BN
        segments = {"before": 1 + before_B2N, "middle": middle_B2N, "after": 1 + after_B2N}
        parts = ("before", "middle", "after")
        if self.config.order == "suffix_first":
            parts = ("after", "before", "middle")
        context_BT = np.concatenate([segments[part] for part in parts], axis=1)
        start = 2 * N * parts.index("middle")
        blanks = slice(start + 1, start + 2 * N, 2)
        tokens_BT = context_BT.copy()
        tokens_BT[:, blanks] = 1 + answer_BN
        answer_BT = np.zeros(tokens_BT.shape, dtype=bool)
        answer_BT[:, blanks] = True
        return batch_of(tokens_BT, context_BT, answer_BT)

    def solve(self, context: Sequence[int], positions: Sequence[int]) -> list[int]:
        third = len(context) // 3
        parts = [context[start : start + third] for start in (0, third, 2 * third)]
        middle = 1 if self.config.order == "natural" else 2
        before, after = (parts[0], parts[2]) if middle == 1 else (parts[1], parts[0])
        answers = []
        for position in positions:
            offset = position - middle * third  # the other thirds have the answer at the same offset
            cue = CUES[parts[middle][offset - 1] - 1 - self.config.num_symbols]
            left, right = before[offset], after[offset]
            total = 1 + (left - 1 + right - 1) % self.config.num_symbols
            answers.append({"before": left, "after": right, "both": total}[cue])
        return answers

    def guesses(self) -> list[Reference]:
        chance = 1 / self.config.num_symbols
        return [
            Reference(
                name="one side alone",
                metric=self.metric,
                value=(1 + 2 * chance) / 3,
                note="all that can be known without what comes after, or without what comes before",
            ),
            Reference(name="random symbol", metric=self.metric, value=chance, note="chance"),
        ]
