"""Base class of the recall probes: facts, then queries among noise tokens, one for each fact.

The layout is that of multi-query associative recall (Arora et al. 2023,
"Zoology", arXiv 2312.04927, section 4): the rest of the sequence after the
facts is cut into slots that hold a query and its answer; which slots are used
follows a power law of their distance from the facts.

Shapes: B examples, T tokens, C tokens of facts, Q queries of W tokens.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.counter_rng import ExampleRNG
from archbench.experiments.tasks.probes.probe import Probe, batch_of
from archbench.experiments.tasks.task import Batch

FILLER = 0


class Lookup(Probe):
    """Base class. ``config`` has ``sequence_length`` and ``power``."""

    @abstractmethod
    def facts(self, rng: ExampleRNG) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The facts (B, C), the queries (B, Q, W) and their answers (B, Q)."""

    def background(self, rng: ExampleRNG) -> NDArray[np.int64]:
        """Return the tokens (B, T) at positions without a fact or query, answers included."""
        return np.full((len(rng.index_B), self.config.sequence_length), FILLER, dtype=np.int64)

    def examples(self, split: str, seed: int, index_B: NDArray[np.int64]) -> Batch:
        c, rng = self.config, ExampleRNG(seed=seed, split=split, index_B=index_B)
        facts_BC, query_BQW, answer_BQ = self.facts(rng)
        facts, (_, queries, width) = facts_BC.shape[1], query_BQW.shape
        slots = num_slots(c.sequence_length, facts, width)
        gap_BQ = rng.distinct("gaps", slots, queries, (c.power - 1) * np.log(np.arange(1, slots + 1)))

        context_BT = self.background(rng)
        context_BT[:, :facts] = facts_BC
        place_BQ = facts + (width + 1) * gap_BQ
        for word in range(width):
            np.put_along_axis(context_BT, place_BQ + word, query_BQW[:, :, word], axis=1)
        tokens_BT = context_BT.copy()
        np.put_along_axis(tokens_BT, place_BQ + width, answer_BQ, axis=1)
        answer_BT = np.zeros((len(index_B), c.sequence_length), dtype=bool)
        np.put_along_axis(answer_BT, place_BQ + width, True, axis=1)
        return batch_of(tokens_BT, context_BT, answer_BT)


def num_slots(sequence_length: int, facts: int, width: int) -> int:
    """Slots for queries of ``width`` tokens and their answers after ``facts`` tokens of facts."""
    return (sequence_length - facts) // (width + 1)


def check_room(sequence_length: int, facts: int, queries: int, width: int) -> None:
    """Raises ValueError where the queries do not fit, naming the length that they need."""
    needed = facts + queries * (width + 1)
    if sequence_length < needed:
        raise ValueError(
            f"sequence_length={sequence_length}: {facts} tokens of facts and {queries} queries "
            f"need {needed} or more"
        )


def check_positive(config: object, *names: str) -> None:
    """Raises ValueError for a setting that must be above 0 and is not."""
    for name in names:
        if getattr(config, name) <= 0:
            raise ValueError(f"{name}={getattr(config, name)} must be above 0")


def graph_sizes(rng: ExampleRNG, smallest: int, largest: int) -> NDArray[np.int64]:
    """Return the number of nodes (B,) of the graph of each example.

    Validation and test have the largest. In training p(n) ~ 1 / (n + sqrt(largest)), as in the code of
    Physics of Language Models 4.1, so that small graphs are more frequent.
    """
    if rng.split != "train":
        return np.full(len(rng.index_B), largest, dtype=np.int64)
    log_weight = -np.log(np.arange(smallest, largest + 1) + largest**0.5)
    return smallest + rng.distinct("graph sizes", largest + 1 - smallest, 1, log_weight)[:, 0]
