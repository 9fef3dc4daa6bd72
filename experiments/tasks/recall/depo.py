"""Depo: k hops along a cycle whose edges are listed in random order.

Allen-Zhu 2025, "Physics of Language Models: Part 4.1" (arXiv 2512.17351; code: facebookresearch/PhysicsLM4):
``name name`` for each edge of a directed cycle, then queries: a token for the number of hops k, a name, a
marker, and the answer, the name of the node k edges further. Training draws cycles of all sizes and k from 1
to K; validation and test use the largest cycles, and for k the powers of two and K. Here names have a fixed
number of symbols.

Shapes: B examples, T tokens, N nodes, L symbols of a name, Q queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.counter_rng import ExampleRNG
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.tasks.metrics import Reference
from archbench.experiments.tasks.probes.probe import GeneratedConfig, Probe, batch_of
from archbench.experiments.tasks.recall.base import FILLER, check_positive, graph_sizes
from archbench.experiments.tasks.task import Batch

SMALLEST = 3
"""Nodes of the smallest cycle in training."""
MOST_NAMES = 2**16
"""Most names to choose from: one random value is drawn for each, for each example."""


@dataclass(frozen=True, kw_only=True)
class DepoConfig(GeneratedConfig):
    """Settings of Depo."""

    sequence_length: int = 28
    """Tokens in an example (T), padding on the right; at least 2NL + Q(2L + 2)."""
    num_nodes: int = 6
    """Nodes of the largest cycle (N), above ``max_hops``."""
    max_hops: int = 2
    """Most edges from the queried name to the answer (K)."""
    num_queries: int = 4
    """Queries of an example (Q), with different names; a cycle of fewer nodes has one for each node."""
    num_symbols: int = 8
    """Symbols that names consist of (V)."""
    name_length: int = 1
    """Symbols of a name (L)."""
    tested_hops: int | None = None
    """Edges from name to answer in validation and test; null draws a power of two up to K, or K."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "max_hops", "num_queries", "num_symbols", "name_length")
        if self.num_nodes <= max(self.max_hops, SMALLEST - 1):
            raise ValueError(
                f"num_nodes={self.num_nodes} must be at least {SMALLEST} and above max_hops={self.max_hops}"
            )
        if not self.num_nodes <= self.num_names <= MOST_NAMES:
            raise ValueError(
                f"num_symbols={self.num_symbols} and name_length={self.name_length} give {self.num_names} "
                f"names; use at least num_nodes={self.num_nodes} and at most {MOST_NAMES}"
            )
        if self.tested_hops is not None and not 1 <= self.tested_hops <= self.max_hops:
            raise ValueError(
                f"tested_hops={self.tested_hops} must be in 1 to max_hops={self.max_hops}, or be null"
            )
        needed = 2 * self.num_nodes * self.name_length + self.num_answers * (2 * self.name_length + 2)
        if self.sequence_length < needed:
            raise ValueError(
                f"sequence_length={self.sequence_length}: {self.num_nodes} edges and {self.num_answers} "
                f"queries need {needed} or more"
            )

    @property
    def num_names(self) -> int:
        """Names to choose from; for longer names than 17 symbols, some number above ``MOST_NAMES``."""
        return self.num_symbols ** min(self.name_length, 17)

    @property
    def num_answers(self) -> int:
        """Queries in a graph of the largest size."""
        return min(self.num_queries, self.num_nodes)

    @property
    def heldout_hops(self) -> list[int]:
        """Numbers of hops in validation and test, equally likely."""
        if self.tested_hops is not None:
            return [self.tested_hops]
        return [*(2**i for i in range(self.max_hops.bit_length()) if 2**i < self.max_hops), self.max_hops]


class Depo(Probe):
    """Symbols of names are 1 to V, then the tokens of 1 to K hops, then the token before an answer."""

    Config = DepoConfig
    generator = "depo-1"

    def __init__(self, config: DepoConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.marker = 1 + config.num_symbols + config.max_hops
        self.vocabulary = Vocabulary(
            num_symbols=1 + self.marker, num_sentinels=config.num_queries * config.name_length
        )

    def examples(self, split: str, seed: int, index_B: NDArray[np.int64]) -> Batch:
        rng = ExampleRNG(seed=seed, split=split, index_B=index_B)
        tokens_BT = np.full((len(index_B), self.sequence_length), FILLER, dtype=np.int64)
        answer_BT, valid_BT = np.zeros((2, *tokens_BT.shape), dtype=bool)
        nodes_B = graph_sizes(rng, SMALLEST, self.config.num_nodes)
        for nodes in np.unique(nodes_B).tolist():
            chosen_B = nodes_B == nodes
            edge_BE, query_BQW = self._cycle(rng.rows(chosen_B), nodes)
            used = edge_BE.shape[1] + query_BQW[0].size
            is_answer_QW = np.zeros(query_BQW.shape[1:], dtype=bool)
            is_answer_QW[:, -self.config.name_length :] = True
            tokens_BT[chosen_B, :used] = np.concatenate(
                [edge_BE, query_BQW.reshape(len(edge_BE), -1)], axis=1
            )
            answer_BT[chosen_B, edge_BE.shape[1] : used] = is_answer_QW.ravel()
            valid_BT[chosen_B, :used] = True
        return batch_of(tokens_BT, np.where(answer_BT, FILLER, tokens_BT), answer_BT, valid_BT)

    def _cycle(self, rng: ExampleRNG, nodes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the edges (B, 2NL) and the queries with their answers (B, Q, 2L + 2)."""
        c, row_B1 = self.config, np.arange(len(rng.index_B))[:, None]
        number_BN = rng.distinct("names", c.num_names, nodes)
        name_BNL = 1 + number_BN[:, :, None] // c.num_symbols ** np.arange(c.name_length) % c.num_symbols
        start_BN = rng.distinct("edges", nodes, nodes)
        edge_BN2L = np.stack([name_BNL[row_B1, start_BN], name_BNL[row_B1, (start_BN + 1) % nodes]], axis=2)

        queries = min(c.num_queries, nodes)
        query_BQ = rng.distinct("queries", nodes, queries)
        hops_BQ = self._hops(rng, queries)
        query_BQW = np.concatenate(
            [
                (c.num_symbols + hops_BQ)[:, :, None],
                name_BNL[row_B1, query_BQ],
                np.full((*query_BQ.shape, 1), self.marker),
                name_BNL[row_B1, (query_BQ + hops_BQ) % nodes],
            ],
            axis=2,
        )
        return edge_BN2L.reshape(len(row_B1), -1), query_BQW

    def _hops(self, rng: ExampleRNG, queries: int) -> NDArray[np.int64]:
        if rng.split == "train":
            return 1 + rng.integers("hops", queries, self.config.max_hops)
        options = np.array(self.config.heldout_hops)
        return options[rng.integers("hops", queries, len(options))]

    def solve(self, context: Sequence[int], positions: Sequence[int]) -> list[int]:
        symbols, length = self.config.num_symbols, self.config.name_length
        edges_end = next(i for i, token in enumerate(context) if token > symbols)
        names = [tuple(context[i : i + length]) for i in range(0, edges_end, length)]
        next_of = dict(zip(names[::2], names[1::2], strict=True))
        answers: list[int] = []
        for position in positions[::length]:
            hops = context[position - length - 2] - symbols
            name = tuple(context[position - length - 1 : position - 1])
            for _ in range(hops):
                name = next_of[name]
            answers.extend(name)
        return answers

    def guesses(self) -> list[Reference]:
        c = self.config
        same_symbol = (c.num_symbols ** (c.name_length - 1) - 1) / (c.num_names - 1)
        lines = (
            (
                "one hop",
                c.heldout_hops.count(1) / len(c.heldout_hops),
                "follows one edge, whatever the number of hops",
            ),
            ("random other name", 1 / (c.num_nodes - 1), "copies a name that is not the queried one"),
        )
        return [
            Reference(
                name=name,
                metric=self.metric,
                value=right + (1 - right) * same_symbol,
                note=f"a model that {note}",
            )
            for name, right, note in lines
        ]
