"""Base class of the formal languages: a string, a marker, and the answer to the string.

The tasks are those of Delétang et al. 2023, "Neural networks and the Chomsky hierarchy" (arXiv 2207.02098;
github.com/google-deepmind/neural_networks_chomsky_hierarchy), which trains on lengths 1 to 40 and tests on up
to 500. ``regular.py``, ``context_free.py`` and ``context_sensitive.py`` are the levels of the hierarchy.

Shapes: B examples, T tokens, N symbols of a string, M symbols of its answer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.counter_rng import ExampleRNG
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.tasks.metrics import Reference
from archbench.experiments.tasks.probes.probe import GeneratedConfig, Probe, batch_of
from archbench.experiments.tasks.task import Batch

FILLER = 0
END = "."
"""The end symbol, which pads answers that are shorter than the maximum length."""


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(GeneratedConfig):
    """Settings of a formal language."""

    sequence_length: int = 42
    """Tokens in an example (T): the string, a marker and the answer, then padding."""
    min_length: int = 3
    """Symbols of the shortest string; lengths up to the longest that fits are equally likely."""
    as_published: bool = False
    """Draw and score as the authors' code does: an answer ends with its first end symbol, and the padding
    after it is neither scored nor hidden; operands of sums and products are above zero; the unknown of an
    equation is the first number from a random position on. By default all end symbols are scored, so that
    no model sees the length of an answer, operands may be zero, and each number is equally likely to be the
    unknown."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_length < 3:
            raise ValueError(f"min_length={self.min_length} must be at least 3")


class Language(Probe):
    """Base class. Token i is the i-th character of ``alphabet``, counted from 1."""

    Config = LanguageConfig
    alphabet: ClassVar[str]
    """The characters that may occur in strings and answers."""
    answers: ClassVar[str]
    """The characters that may occur in an answer."""

    def __init__(self, config: LanguageConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.marker = 1 + len(self.alphabet)
        self.vocabulary = Vocabulary(num_symbols=self.marker + 1, num_sentinels=1)
        lengths = range(config.min_length, config.sequence_length)
        fitting = [n for n in lengths if n + 1 + self.answer_length(n) <= config.sequence_length]
        if not fitting:
            needed = config.min_length + 1 + self.answer_length(config.min_length)
            raise ValueError(
                f"sequence_length={config.sequence_length}: a string of min_length={config.min_length}, "
                f"a marker and the answer need {needed}"
            )
        self.max_length = fitting[-1]

    def answer_length(self, length: int) -> int:
        """Symbols of the answer (M) to a string of ``length``, a function of the length only."""
        return 1

    @abstractmethod
    def make(self, rng: ExampleRNG, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Strings (B, N) and answers (B, M), as indices into ``alphabet``."""

    @abstractmethod
    def rewrite(self, text: str) -> str:
        """The answer to one string, worked out plainly: the oracle."""

    def examples(self, split: str, seed: int, index_B: NDArray[np.int64]) -> Batch:
        rng, T = ExampleRNG(seed=seed, split=split, index_B=index_B), self.sequence_length
        options = self.max_length - self.config.min_length + 1
        length_B = self.config.min_length + rng.integers("lengths", 1, options)[:, 0]
        context_BT = np.full((len(index_B), T), FILLER, dtype=np.int64)
        tokens_BT = context_BT.copy()
        answer_BT, valid_BT = np.zeros((2, len(index_B), T), dtype=bool)
        for length in np.unique(length_B).tolist():
            chosen_B = length_B == length
            string_BN, answer_BM = self.make(rng.rows(chosen_B), length)
            assert string_BN.shape[1] == length
            end = length + 1 + answer_BM.shape[1]
            context_BT[chosen_B, :length] = 1 + string_BN
            context_BT[chosen_B, length] = self.marker
            tokens_BT[chosen_B, : length + 1] = context_BT[chosen_B, : length + 1]
            scored_BM = np.ones(answer_BM.shape, dtype=bool)
            if self.config.as_published and END in self.alphabet:  # up to the first end symbol
                ends_BM = answer_BM == self.alphabet.index(END)
                scored_BM = ends_BM.cumsum(1) - ends_BM == 0
            answer_BT[chosen_B, length + 1 : end] = scored_BM
            tokens_BT[chosen_B, length + 1 : end] = np.where(scored_BM, 1 + answer_BM, FILLER)
            valid_BT[chosen_B, :end] = True
        return batch_of(tokens_BT, context_BT, answer_BT, valid_BT)

    def solve(self, context: Sequence[int], positions: Sequence[int]) -> list[int]:
        text = "".join(self.alphabet[token - 1] for token in context[: positions[0] - 1])
        return [1 + self.alphabet.index(character) for character in self.rewrite(text)]

    def guesses(self) -> list[Reference]:
        return [
            Reference(name="random answer", metric=self.metric, value=1 / len(self.answers), note="chance")
        ]
