"""Phone book: names with their numbers, then one of the names.

Jelassi et al. 2024, "Repeat after me" (arXiv 2402.01032): how many entries can a model hold? There real names
and ten digits are written out as text for pretrained models, with two solved examples; here a name is two
symbols and a number some digits, to be learned from scratch. As many entries as fit the length.

Shapes: B examples, T tokens, K entries, D digits.
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
DIGITS = 10


@dataclass(frozen=True, kw_only=True)
class PhoneBookConfig(GeneratedConfig):
    """Settings of the phone book."""

    sequence_length: int = 64
    """Tokens in an example (T); what entries leave over is filler on the left."""
    num_digits: int = 4
    """Digits of a number (D)."""
    num_names: int = 16
    """First names, and last names; no full name occurs twice."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_digits < 1 or self.num_names < 2:
            raise ValueError(
                f"num_digits={self.num_digits} and num_names={self.num_names} must be at least 1 and 2"
            )
        if self.sequence_length < 3 * (2 + self.num_digits):
            raise ValueError(
                f"sequence_length={self.sequence_length}: two entries and a question need "
                f"{3 * (2 + self.num_digits)}"
            )
        if self.num_entries > self.num_names**2:
            raise ValueError(
                f"num_names={self.num_names} gives {self.num_names**2} full names, and sequence_length="
                f"{self.sequence_length} has room for {self.num_entries} entries: take more names"
            )

    @property
    def num_entries(self) -> int:
        """Entries of the book (K): the question needs as many tokens as one entry."""
        return self.sequence_length // (2 + self.num_digits) - 1


class PhoneBook(Probe):
    """Digits are 1 to 10, then first names, then last names."""

    Config = PhoneBookConfig
    generator = "phone-book-1"

    def __init__(self, config: PhoneBookConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.vocabulary = Vocabulary(num_symbols=1 + DIGITS + 2 * config.num_names, num_sentinels=1)

    def examples(self, split: str, seed: int, index_B: NDArray[np.int64]) -> Batch:
        c, rng = self.config, ExampleRNG(seed=seed, split=split, index_B=index_B)
        entries, row_B = c.num_entries, np.arange(len(index_B))
        name_BK = rng.distinct("names", c.num_names**2, entries)
        entry_BKJ = np.empty((len(index_B), entries + 1, 2 + c.num_digits), dtype=np.int64)
        entry_BKJ[:, :-1, 0] = 1 + DIGITS + name_BK // c.num_names
        entry_BKJ[:, :-1, 1] = 1 + DIGITS + c.num_names + name_BK % c.num_names
        digit_BN = rng.integers("digits", entries * c.num_digits, DIGITS)
        entry_BKJ[:, :-1, 2:] = 1 + digit_BN.reshape(len(index_B), entries, -1)
        entry_BKJ[:, -1] = entry_BKJ[row_B, rng.integers("asked", 1, entries)[:, 0]]

        tokens_BT = np.full((len(index_B), c.sequence_length), FILLER, dtype=np.int64)
        tokens_BT[:, -(entries + 1) * (2 + c.num_digits) :] = entry_BKJ.reshape(len(index_B), -1)
        answer_BT = np.zeros(tokens_BT.shape, dtype=bool)
        answer_BT[:, -c.num_digits :] = True
        return batch_of(tokens_BT, np.where(answer_BT, FILLER, tokens_BT), answer_BT)

    def solve(self, context: Sequence[int], positions: Sequence[int]) -> list[int]:
        book = list(context[: positions[0]])
        while book[0] == FILLER:
            del book[0]
        name, width = book[-2:], 2 + len(positions)
        for entry in range(0, len(book) - 2, width):
            if book[entry : entry + 2] == name:
                return book[entry + 2 : entry + width]
        raise AssertionError(f"the name {name} is not in the book")

    def guesses(self) -> list[Reference]:
        entries = self.config.num_entries
        return [
            Reference(
                name="random number shown",
                metric=self.metric,
                # It is the queried one, or another one with the same digit by chance.
                value=(1 + (entries - 1) / DIGITS) / entries,
                note="what a model reaches that copies the number of any entry",
            ),
            Reference(name="random digit", metric=self.metric, value=1 / DIGITS, note="chance"),
        ]
