"""Copying and selective copying: repeat, in order, the symbols in the context.

In the plain form the symbols come first, so that each is needed after the same
delay: a fixed convolution can do it (Arjovsky et al. 2016, arXiv 1511.06464). In
the selective form they are at random positions among noise, and which tokens to
copy depends on the input (Gu and Dao 2023, "Mamba", arXiv 2312.00752, section
3.1 and table 1). The authors' generator is not public; the layout here is that
of the S4 repository's: symbols among blanks, a marker, then the answers.
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

BLANK = 0


@dataclass(frozen=True, kw_only=True)
class CopyingConfig(GeneratedConfig):
    """Settings of copying."""

    sequence_length: int = 64
    """Tokens in an example (T), the answers included; more than two for each copied symbol."""
    num_copied: int = 8
    """Symbols to be repeated (K)."""
    num_symbols: int = 16
    """Symbols (V): 0 is noise, V-1 marks the end of the symbols, the rest are data."""
    selective: bool = False
    """Place the symbols at random positions instead of at the start."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_copied < 1 or self.num_symbols < 4:
            raise ValueError(
                f"num_copied={self.num_copied} and num_symbols={self.num_symbols} must be at least 1 and 4"
            )
        if self.sequence_length <= 2 * self.num_copied:
            raise ValueError(
                f"num_copied={self.num_copied} needs sequence_length >= {2 * self.num_copied + 1}, "
                f"got {self.sequence_length}"
            )


class Copying(Probe):
    """Copying, plain or selective."""

    Config = CopyingConfig
    generator = "copying-1"

    def __init__(self, config: CopyingConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.vocabulary = Vocabulary(num_symbols=config.num_symbols, num_sentinels=config.num_copied)

    def examples(self, split: str, seed: int, index_B: NDArray[np.int64]) -> Batch:
        c = self.config
        marker = c.sequence_length - c.num_copied - 1  # tokens before the marker
        symbol_BK = 1 + (
            uniform(stream(seed, split, "symbols"), index_B, c.num_copied) * (c.num_symbols - 2)
        ).astype(np.int64)
        place_BK = np.broadcast_to(np.arange(c.num_copied), symbol_BK.shape)
        if c.selective:
            order_BS = uniform(stream(seed, split, "places"), index_B, marker).argsort(axis=1, kind="stable")
            place_BK = np.sort(order_BS[:, : c.num_copied], axis=1)

        context_BT = np.full((len(index_B), c.sequence_length), BLANK, dtype=np.int64)
        np.put_along_axis(context_BT, place_BK, symbol_BK, axis=1)
        context_BT[:, marker] = c.num_symbols - 1
        tokens_BT = context_BT.copy()
        tokens_BT[:, marker + 1 :] = symbol_BK
        answer_BT = np.zeros(tokens_BT.shape, dtype=bool)
        answer_BT[:, marker + 1 :] = True

        return batch_of(tokens_BT, context_BT, answer_BT)

    def solve(self, context: Sequence[int], positions: Sequence[int]) -> list[int]:
        symbols = [token for token in context[: positions[0] - 1] if token != BLANK]
        assert len(symbols) == len(positions)
        return symbols

    def guesses(self) -> list[Reference]:
        c = self.config
        data = c.num_symbols - 2
        return [
            Reference(
                name="random symbol shown",
                metric=self.metric,
                # It is the correct one, or another one that happens to be equal.
                value=(1 + (c.num_copied - 1) / data) / c.num_copied,
                note="what a model reaches that knows which symbols were shown and not their order",
            ),
            Reference(name="random symbol", metric=self.metric, value=1 / data, note="chance"),
        ]
