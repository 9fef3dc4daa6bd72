"""n-gram lookup: what followed these letters in the string?

Jelassi et al. 2024, "Repeat after me" (arXiv 2402.01032; github.com/sjelassi/transformers_ssm_copy): a random
string, and a few letters of it in a row; the answer is what follows their first occurrence. In the suffix
form the question comes after the string, in the prefix form before it, where a model knows what to look
for while it reads.

Shapes: B examples, T tokens, L letters of the string, N of the question, A of the answer.
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
from archbench.experiments.tasks.task import Batch

FILLER = 0


@dataclass(frozen=True, kw_only=True)
class NgramLookupConfig(GeneratedConfig):
    """Settings of n-gram lookup."""

    sequence_length: int = 64
    """Tokens in an example (T): the string, the question and the answer, and a separator or two."""
    ngram: int = 3
    """Letters of the question (N)."""
    answer_length: int = 1
    """Letters of the answer (A)."""
    num_letters: int = 26
    """Size of the alphabet."""
    question_first: bool = False
    """Place the question before the string (prefix form), not after it (suffix form)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ngram < 1 or self.answer_length < 1 or self.num_letters < 2:
            raise ValueError(
                f"ngram={self.ngram}, answer_length={self.answer_length} and num_letters={self.num_letters} "
                "must be at least 1, 1 and 2"
            )
        needed = 2 * (self.ngram + self.answer_length) + 2 + self.question_first
        if self.sequence_length < needed:
            raise ValueError(f"sequence_length={self.sequence_length} must be at least {needed}")


class NgramLookup(Probe):
    """``string | question answer``, or ``question | string | answer``; the separator is the last symbol."""

    Config = NgramLookupConfig
    generator = "ngram-lookup-1"

    def __init__(self, config: NgramLookupConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.separator = 1 + config.num_letters
        self.length = config.sequence_length - config.ngram - config.answer_length - 1 - config.question_first
        self.vocabulary = Vocabulary(num_symbols=2 + config.num_letters, num_sentinels=1)

    def examples(self, split: str, seed: int, index_B: NDArray[np.int64]) -> Batch:
        c, rng = self.config, ExampleRNG(seed=seed, split=split, index_B=index_B)
        letter_BL = 1 + rng.integers("letters", self.length, c.num_letters)
        place_B1 = rng.integers("place", 1, self.length - c.ngram - c.answer_length + 1)
        ngram_BLN = np.lib.stride_tricks.sliding_window_view(letter_BL, c.ngram, axis=1)
        question_BN = np.take_along_axis(ngram_BLN, place_B1[:, :, None], axis=1)[:, 0]
        first_B1 = (ngram_BLN == question_BN[:, None]).all(2).argmax(1)[:, None]
        answer_BA = np.take_along_axis(letter_BL, first_B1 + c.ngram + np.arange(c.answer_length), axis=1)

        separator_B1 = np.full((len(index_B), 1), self.separator)
        parts = [letter_BL, separator_B1, question_BN, answer_BA]
        if c.question_first:
            parts = [question_BN, separator_B1, letter_BL, separator_B1, answer_BA]
        tokens_BT = np.concatenate(parts, axis=1)
        answer_BT = np.zeros(tokens_BT.shape, dtype=bool)
        answer_BT[:, -c.answer_length :] = True
        return batch_of(tokens_BT, np.where(answer_BT, FILLER, tokens_BT), answer_BT)

    def solve(self, context: Sequence[int], positions: Sequence[int]) -> list[int]:
        text = "".join(map(chr, context[: positions[0]]))
        parts = text.split(chr(self.separator))
        question, string = (parts[0], parts[1]) if self.config.question_first else (parts[1], parts[0])
        start = string.index(question) + len(question)
        return [ord(letter) for letter in string[start : start + len(positions)]]

    def guesses(self) -> list[Reference]:
        letters = self.config.num_letters
        return [Reference(name="random letter", metric=self.metric, value=1 / letters, note="chance")]
