"""Recall in multiple hops: the value of a key is the key of the next look-up.

Chains ``s0 s1 .. sH`` of distinct symbols are given as pairs ``s(h) s(h+1)``, all of them in random order;
then the first symbol of each chain is queried once, and the answer is the last of its chain. One hop is
multi-query associative recall (Arora et al. 2023, arXiv 2312.04927); more hops need as many look-ups one
after the other (Sanford et al. 2024, "Transformers, parallel computation, and logarithmic depth", arXiv
2402.09268).
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
class ChainedRecallConfig(GeneratedConfig):
    """Settings of recall in hops."""

    sequence_length: int = 32
    """Tokens in an example (T); at least 2K(H + 1)."""
    num_chains: int = 4
    """Chains (K), each queried once."""
    hops: int = 2
    """Look-ups from the first symbol of a chain to its last (H)."""
    num_symbols: int = 32
    """Symbols (V): 0 is padding, all other ones may occur in a chain."""
    power: float = 0.01
    """Exponent a of the law p(gap) ~ gap^(a-1)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_chains", "hops", "power")
        check_room(self.sequence_length, 2 * self.num_chains * self.hops, self.num_chains, 1)
        needed = self.num_chains * (self.hops + 1) + 1
        if self.num_symbols < needed:
            raise ValueError(f"num_symbols={self.num_symbols} must be at least {needed}")


class ChainedRecall(Lookup):
    """Chains of pairs."""

    Config = ChainedRecallConfig
    generator = "chained-recall-1"

    def __init__(self, config: ChainedRecallConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.vocabulary = Vocabulary(num_symbols=config.num_symbols, num_sentinels=config.num_chains)

    def facts(self, rng: ExampleRNG) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        c = self.config
        drawn = 1 + rng.distinct("symbols", c.num_symbols - 1, c.num_chains * (c.hops + 1))
        chain_BKH = drawn.reshape(len(drawn), c.num_chains, c.hops + 1)
        pair_BJ2 = np.stack([chain_BKH[:, :, :-1], chain_BKH[:, :, 1:]], axis=3).reshape(len(drawn), -1, 2)
        order_BJ = rng.distinct("order", pair_BJ2.shape[1], pair_BJ2.shape[1])
        shuffled_BJ2 = np.take_along_axis(pair_BJ2, order_BJ[:, :, None], axis=1)
        return shuffled_BJ2.reshape(len(drawn), -1), chain_BKH[:, :, :1], chain_BKH[:, :, -1]

    def solve(self, context: Sequence[int], positions: Sequence[int]) -> list[int]:
        facts = context[: 2 * self.config.num_chains * self.config.hops]
        answers = []
        for position in positions:
            symbol = context[position - 1]
            while symbol in facts[::2]:
                symbol = facts[2 * list(facts[::2]).index(symbol) + 1]
            answers.append(symbol)
        return answers

    def guesses(self) -> list[Reference]:
        return [
            Reference(
                name="random end of a chain",
                metric=self.metric,
                value=1 / self.config.num_chains,
                note="what a model reaches that knows which symbols end a chain and not whose",
            )
        ]
