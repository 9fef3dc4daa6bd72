"""The word problem of a finite group: multiply the elements seen so far.

Whether a model can keep the running product is what "state tracking" means:
parity is the group Z2; S5, with products that no constant-depth circuit computes
(Barrington 1989), is the standard hard case (Merrill et al. 2024, "The illusion
of state", arXiv 2404.08819; Grazzi et al. 2024, arXiv 2411.12537, section 5).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.counter_rng import uniform
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.runtime.errors import nearest
from archbench.experiments.runtime.seeds import stream
from archbench.experiments.tasks.metrics import Reference
from archbench.experiments.tasks.probes.probe import GeneratedConfig, Probe, batch_of
from archbench.experiments.tasks.task import Batch

WINDOW = 4
"""Elements that the shallow baseline of the reference lines looks back at."""

SENTINELS = 128
"""Largest number of answers that an encoder-decoder can generate for one example."""

LARGEST_CYCLIC = 120
LARGEST_SYMMETRIC = 5


@dataclass(frozen=True, kw_only=True)
class WordProblemConfig(GeneratedConfig):
    """Settings of a word problem."""

    sequence_length: int = 64
    """Tokens in an example (T): element and answer in turn, so an even number."""
    group: str = "Z2"
    """``Z2`` to ``Z120`` (addition modulo n; Z2 is parity), ``S3`` to ``S5`` (permutations), ``A3`` to
    ``A5`` (the even ones)."""
    swaps: bool = False
    """Draw only transpositions (S3 to S5); their products are the complete group."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sequence_length < 2 or self.sequence_length % 2:
            raise ValueError(f"sequence_length={self.sequence_length} must be even and positive")
        elements(self.group)
        if self.swaps and not self.group.startswith("S"):
            raise ValueError(f"swaps=true: group={self.group} has no transpositions; take S3, S4 or S5")


class WordProblem(Probe):
    """``x1 y1 x2 y2 ...`` with ``y_t = x_1 x_2 ... x_t``. The context hides the products."""

    Config = WordProblemConfig
    generator = "word-problem-1"

    def __init__(self, config: WordProblemConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.product_GG = products(config.group)
        self.shown = generators(config.group, config.swaps)
        # Symbol 0 is filler, 1 .. G the elements. The sentinels are as many at every length.
        self.vocabulary = Vocabulary(num_symbols=1 + len(self.product_GG), num_sentinels=SENTINELS)

    def examples(self, split: str, seed: int, index_B: NDArray[np.int64]) -> Batch:
        length = self.sequence_length // 2
        drawn_BN = uniform(stream(seed, split, "elements"), index_B, length) * len(self.shown)
        element_BN = self.shown[drawn_BN.astype(np.int64)]
        product_BN = element_BN.copy()
        for n in range(1, length):
            product_BN[:, n] = self.product_GG[product_BN[:, n - 1], element_BN[:, n]]

        context_BT = np.zeros((len(index_B), self.sequence_length), dtype=np.int64)
        context_BT[:, ::2] = 1 + element_BN
        tokens_BT = context_BT.copy()
        tokens_BT[:, 1::2] = 1 + product_BN
        answer_BT = np.zeros(tokens_BT.shape, dtype=bool)
        answer_BT[:, 1::2] = True
        return batch_of(tokens_BT, context_BT, answer_BT)

    def solve(self, context: Sequence[int], positions: Sequence[int]) -> list[int]:
        listed = elements(self.config.group)
        state, answers = listed[0], []
        for element in context[::2]:
            permutation = listed[element - 1]
            state = tuple(permutation[image] for image in state)
            answers.append(1 + listed.index(state))
        assert len(answers) == len(positions)
        return answers

    def guesses(self) -> list[Reference]:
        num_words = self.sequence_length // 2
        # After a known number of swaps a permutation is known to be even or odd.
        chance = (2 if self.config.swaps else 1) / len(self.product_GG)
        num_known = min(num_words, WINDOW)
        return [
            Reference(
                name=f"the last {WINDOW} elements",
                metric=self.metric,
                value=(num_known + (num_words - num_known) * chance) / num_words,
                note=f"products of up to {WINDOW} elements, and chance after them",
            ),
            Reference(
                name="chance", metric=self.metric, value=chance, note="an element that is possible there"
            ),
        ]


@functools.cache
def elements(group: str) -> tuple[tuple[int, ...], ...]:
    """The elements as permutations (images of 0, 1, ...), the identity first. Raises ValueError."""
    match = re.fullmatch(r"([ZSA])(\d{1,3})", group)
    family, n = (match[1], int(match[2])) if match else ("", 0)
    if family == "Z" and 2 <= n <= LARGEST_CYCLIC:
        return tuple(tuple((i + shift) % n for i in range(n)) for shift in range(n))
    if family in ("S", "A") and 3 <= n <= LARGEST_SYMMETRIC:
        return tuple(p for p in permutations(range(n)) if family == "S" or is_even(p))
    examples = ("Z2", "Z60", "S3", "S4", "S5", "A4", "A5")
    raise ValueError(f"group={group!r}{nearest(group, examples)}; there are Z2 to Z120, S3 to S5, A3 to A5")


def is_even(permutation: tuple[int, ...]) -> bool:
    """True if it is a product of an even number of transpositions."""
    n = len(permutation)
    inversions = sum(permutation[i] > permutation[j] for i in range(n) for j in range(i + 1, n))
    return inversions % 2 == 0


@functools.cache
def products(group: str) -> NDArray[np.int64]:
    """The multiplication table (G, G): entry (a, b) is the number of "first a, then b"."""
    listed = elements(group)
    index_of = {element: index for index, element in enumerate(listed)}
    return np.array([[index_of[tuple(b[i] for i in a)] for b in listed] for a in listed], dtype=np.int64)


def generators(group: str, swaps: bool) -> NDArray[np.int64]:
    """Indices of the elements that may be drawn: all, or the transpositions."""
    chosen = [
        index
        for index, element in enumerate(elements(group))
        if not swaps or sum(image != position for position, image in enumerate(element)) == 2
    ]
    return np.array(chosen, dtype=np.int64)
