"""Brevo: all nodes that a node of a directed acyclic graph depends on, in topological order.

Allen-Zhu 2025, "Physics of Language Models: Part 4.1" (arXiv 2512.17351; code: facebookresearch/PhysicsLM4):
edges ``parent child`` in random order, the last node of the graph as query, and its ancestors and itself so
that parents precede children. There any topological order is right. Here it is one order, so that tokens can
be scored: layer by layer, a node one layer after the last of its parents, ascending within a layer. End
symbols, which are scored, pad the answer to the number of nodes.

Shapes: B examples, T tokens, N nodes, E edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.counter_rng import ExampleRNG
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.tasks.metrics import Reference
from archbench.experiments.tasks.probes.probe import GeneratedConfig, Probe, batch_of
from archbench.experiments.tasks.recall.base import FILLER, check_positive, graph_sizes
from archbench.experiments.tasks.task import Batch

SENTINELS = 128
"""Largest number of answers that an encoder-decoder can generate for one example."""
SMALLEST = 3
"""Nodes of the smallest graph in training."""
_COUNTED = 500
"""Test examples of which ancestors are counted for the guess."""


@dataclass(frozen=True, kw_only=True)
class BrevoConfig(GeneratedConfig):
    """Settings of Brevo."""

    sequence_length: int = 28
    """Tokens in an example (T), padding on the right; enough for the graph with the most edges."""
    num_nodes: int = 5
    """Nodes of the largest graph (N)."""
    max_degree: int = 4
    """Most parents, and most children, of a node."""
    num_symbols: int = 8
    """Symbols for nodes (V)."""
    show_answers: bool = False
    """Show the answers to later positions, as in the authors' code; else a padding token hides them, so
    that all objectives read the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "max_degree")
        if not SMALLEST <= self.num_nodes <= self.num_symbols:
            raise ValueError(
                f"num_nodes={self.num_nodes} must be in {SMALLEST} to num_symbols={self.num_symbols}"
            )
        limited = min(
            self.num_nodes - 1, self.max_degree
        )  # nodes with fewer nodes before them than max_degree
        edges = limited * (limited + 1) // 2 + (self.num_nodes - 1 - limited) * self.max_degree
        needed = 2 * edges + 3 + self.num_nodes
        if self.sequence_length < needed:
            raise ValueError(
                f"sequence_length={self.sequence_length}: up to {edges} edges, the query and "
                f"{self.num_nodes} answers need {needed} or more"
            )


class Brevo(Probe):
    """Nodes are 1 to V, then a token before the query, one before the answer, and the end symbol."""

    Config = BrevoConfig
    generator = "brevo-1"

    def __init__(self, config: BrevoConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.query, self.marker, self.end = range(1 + config.num_symbols, 4 + config.num_symbols)
        self.vocabulary = Vocabulary(num_symbols=1 + self.end, num_sentinels=SENTINELS)

    def examples(self, split: str, seed: int, index_B: NDArray[np.int64]) -> Batch:
        rng = ExampleRNG(seed=seed, split=split, index_B=index_B)
        tokens_BT = np.full((len(index_B), self.sequence_length), FILLER, dtype=np.int64)
        answer_BT, valid_BT = np.zeros((2, *tokens_BT.shape), dtype=bool)
        nodes_B = graph_sizes(rng, SMALLEST, self.config.num_nodes)
        for nodes in np.unique(nodes_B).tolist():
            chosen_B = nodes_B == nodes
            graph_rng = rng.rows(chosen_B)
            token_BN = 1 + graph_rng.distinct("nodes", self.config.num_symbols, nodes)
            is_parent_BNN = parents(graph_rng, nodes, self.config.max_degree)
            edge_BE, edges_B1 = self._edges(graph_rng, token_BN, is_parent_BNN)
            tail_BJ = self._query_and_answer(token_BN, is_parent_BNN)

            row_B1 = np.flatnonzero(chosen_B)[:, None]
            tail_at_BJ = 2 * edges_B1 + np.arange(tail_BJ.shape[1])
            tokens_BT[row_B1, np.arange(edge_BE.shape[1])] = edge_BE
            tokens_BT[row_B1, tail_at_BJ] = tail_BJ
            answer_BT[row_B1, tail_at_BJ[:, 3:]] = True
            valid_BT[chosen_B] = np.arange(self.sequence_length) <= tail_at_BJ[:, -1:]
        hidden_BT = answer_BT & (not self.config.show_answers)
        return batch_of(tokens_BT, np.where(hidden_BT, FILLER, tokens_BT), answer_BT, valid_BT)

    def _edges(
        self, rng: ExampleRNG, token_BN: NDArray[np.int64], is_parent_BNN: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the edges in random order, filler after them (B, 2E), and their number (B, 1)."""
        nodes = token_BN.shape[1]
        is_edge_BE = is_parent_BNN.reshape(len(token_BN), -1)
        num_edges_B1 = is_edge_BE.sum(1, keepdims=True)
        with np.errstate(divide="ignore"):
            pair_BE = rng.distinct("edges", nodes**2, num_edges_B1.max(), np.log(is_edge_BE.astype(float)))
        child_BE, parent_BE = np.divmod(pair_BE, nodes)
        ends_BE2 = np.stack(
            [np.take_along_axis(token_BN, x_BE, axis=1) for x_BE in (parent_BE, child_BE)], axis=2
        )
        ends_BE2[np.arange(pair_BE.shape[1]) >= num_edges_B1] = FILLER
        return ends_BE2.reshape(len(token_BN), -1), num_edges_B1

    def _query_and_answer(
        self, token_BN: NDArray[np.int64], is_parent_BNN: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Return query token, query, answer token and answers (B, 3 + N); the last node is the query."""
        nodes = token_BN.shape[1]
        is_listed_BN = np.zeros(token_BN.shape, dtype=bool)
        is_listed_BN[:, -1] = True
        for node in reversed(range(nodes)):
            is_listed_BN |= is_listed_BN[:, node, None] & is_parent_BNN[:, node]
        layer_BN = np.zeros_like(token_BN)
        for node in range(nodes):
            layer_BN[:, node] = (is_parent_BNN[:, node] * (1 + layer_BN)).max(1)
        key_BN = np.where(is_listed_BN, layer_BN * self.end + token_BN, nodes * self.end)
        answer_BN = np.take_along_axis(token_BN, key_BN.argsort(axis=1), axis=1)
        answer_BN[np.arange(nodes) >= is_listed_BN.sum(1, keepdims=True)] = self.end
        frame_B3 = np.tile([self.query, 0, self.marker], (len(token_BN), 1))
        frame_B3[:, 1] = token_BN[:, -1]
        return np.concatenate([frame_B3, answer_BN], axis=1)

    def solve(self, context: Sequence[int], positions: Sequence[int]) -> list[int]:
        edges_end = list(context).index(self.query)
        edges = list(zip(context[:edges_end:2], context[1:edges_end:2], strict=True))
        remaining, reached = set(), {context[edges_end + 1]}
        while reached:
            remaining |= reached
            reached = {parent for parent, child in edges if child in reached}
        order: list[int] = []
        while remaining:
            blocked = {child for parent, child in edges if parent in remaining}
            order.extend(sorted(remaining - blocked))
            remaining &= blocked
        return order + [self.end] * (len(positions) - len(order))

    @cached_property
    def _listed(self) -> float:
        """Mean number of nodes in the answers of the test split."""
        batch = self.batch("test", 0, 0, _COUNTED)
        return float((batch.answer_BT & (batch.tokens_BT != self.end)).sum()) / _COUNTED

    def guesses(self) -> list[Reference]:
        nodes = self.config.num_nodes
        return [
            Reference(
                name="random order",
                metric=self.metric,
                value=(1 + nodes - self._listed) / nodes,
                note="a model that lists the right nodes in random order, with all end symbols",
                items=_COUNTED,
            ),
            Reference(
                name="end symbols",
                metric=self.metric,
                value=(nodes - self._listed) / nodes,
                note="a model that gives all end symbols and no node",
                items=_COUNTED,
            ),
        ]


def parents(rng: ExampleRNG, nodes: int, max_degree: int) -> NDArray[np.bool_]:
    """Return whether the last index is a parent of the one before it, in random graphs (B, N, N).

    The first nodes, 1 to (N - 1) // 4 + 1 of them, have no parents. Each later node in turn has 1 to
    ``max_degree`` of the nodes before it that have fewer than ``max_degree`` children.
    """
    is_parent_BNN = np.zeros((len(rng.index_B), nodes, nodes), dtype=bool)
    sources_B = 1 + rng.integers("sources", 1, (nodes - 1) // 4 + 1)[:, 0]
    for node in range(1, nodes):
        is_open_BN = is_parent_BNN[:, :, :node].sum(1) < max_degree
        most_B = np.minimum(is_open_BN.sum(1), max_degree)
        count_B = (1 + rng.integers(f"parents {node}", 1, most_B)[:, 0]) * (node >= sources_B)
        with np.errstate(divide="ignore"):
            chosen_BN = rng.distinct(f"parent {node}", node, node, np.log(is_open_BN.astype(float)))
        chosen_rank_BN = np.argsort(chosen_BN, axis=1)
        is_parent_BNN[:, node, :node] = chosen_rank_BN < count_B[:, None]
    return is_parent_BNN
