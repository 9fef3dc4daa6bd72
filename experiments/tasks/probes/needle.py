"""Needles in a haystack: find a fact that occurs once in a long text, at any length and depth.

After RULER (Hsieh et al. 2024, arXiv 2404.06654): one needle among other ones, multiple values of one key,
multiple keys, and variable tracking. The haystack is Python's documentation as bytes, so a model trained
on ``task=text`` can also be evaluated. Needles are lines of one length,

    The number of QWERT is 12345.        (all types but variable tracking)
    QWERT is what is called 12345.       (variable tracking: then ASDFG is what is called QWERT.)

and every type but ``single`` has as many needles that are not queried. The question, at the end, has the
form of the needles; the characters of the answers are scored and hidden from later positions.

Shapes: B examples, T tokens, M needles of an example.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.corpus import SPLITS, CorpusConfig
from archbench.experiments.data.counter_rng import uniform
from archbench.experiments.data.token_file import open_token_file
from archbench.experiments.data.tokenizers.tokenizer import TokenizerConfig
from archbench.experiments.runtime.errors import DataError, nearest
from archbench.experiments.runtime.seeds import stream
from archbench.experiments.tasks.metrics import Reference
from archbench.experiments.tasks.probes.probe import batch_of
from archbench.experiments.tasks.task import Batch, Task

KINDS = ("single", "multi_key", "multi_value", "multi_query", "variable_tracking")
_FILLER = ord("_")
_DOCUMENT_END = ord("\n")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_WIDTH = 5
"""Characters of a key and of a value."""


@dataclass(frozen=True, kw_only=True)
class NeedleConfig:
    """Settings of needles in a haystack."""

    kind: str = "multi_key"
    """``single``, ``multi_key``, ``multi_value``, ``multi_query`` or ``variable_tracking``."""
    sequence_length: int = 1024
    """Tokens in an example (T): bytes of text, question and answers."""
    num_needles: int = 4
    """Keys of which one is queried (multi_key), values, queries, or names in a chain; single has one."""
    depth: float | None = None
    """Position of the first needle that is queried, as a fraction of the haystack; null draws it."""
    num_sentinels: int = 28
    """Sentinel ids, never used here, so that the vocabulary is that of ``task=text``."""
    cache_dir: str = "data-cache"
    """Folder of the prepared documentation."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r} is unknown{nearest(self.kind, KINDS)}")
        if self.num_needles < 2:
            raise ValueError(f"num_needles={self.num_needles} must be 2 or more; use kind=single for one")
        if self.depth is not None and not 0 <= self.depth <= 1:
            raise ValueError(f"depth={self.depth} must be in [0, 1], or be null")
        if self.num_sentinels < 0:
            raise ValueError(f"num_sentinels={self.num_sentinels} must not be negative")


class Needle(Task):
    """Needles in a haystack. Training examples never run out."""

    Config = NeedleConfig
    metric = "answer_accuracy"

    def __init__(self, config: NeedleConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        # The token file of task=text by its defaults, so that the documentation is prepared once.
        self._file = open_token_file(
            CorpusConfig(), TokenizerConfig(), config.num_sentinels, config.cache_dir
        )
        self.tokenizer = self._file.tokenizer
        self.vocabulary = self._file.tokenizer.vocabulary
        needles, question = self._written([0] * self._drawn, [0] * self._drawn)
        taken = sum(map(len, needles)) + sum(len(text) for text, _ in question)
        self._hay = config.sequence_length - taken
        if self._hay < 0:
            raise ValueError(
                f"sequence_length={config.sequence_length}: needles and question alone take {taken}; "
                "use a longer sequence or fewer needles"
            )
        shortest = min(len(self._file.tokens[split]) for split in SPLITS)
        if self._hay >= shortest:
            raise DataError(
                f"sequence_length={config.sequence_length}: a split has only {shortest} bytes of text"
            )

    @property
    def _drawn(self) -> int:
        """Needles in the haystack, including those that are not queried."""
        n = self.config.num_needles
        return {"single": 1, "multi_key": n}.get(self.config.kind, 2 * n)

    def batch(self, split: str, seed: int, start: int, count: int) -> Batch:
        index_B = np.arange(start, start + count, dtype=np.int64)
        hay_N, num_needles = self._file.tokens[split], self._drawn

        def draw(name: str, slots: int) -> NDArray[np.float64]:
            return uniform(stream(seed, split, f"needle {name}"), index_B, slots)

        begin_B = (draw("haystack", 1)[:, 0] * (len(hay_N) - self._hay)).astype(np.int64)
        # Different integers below base ** 5: each is drawn from a separate interval of the ring of all
        # values, which the last draw rotates, so that each is uniform over all values.
        different = []
        for name, base in (("keys", 26), ("values", 10)):
            size, drawn_BX = base**_WIDTH, draw(name, num_needles + 1)
            interval_M = np.arange(num_needles) * size // num_needles
            within_BM = (drawn_BX[:, :-1] * (size // num_needles)).astype(np.int64)
            different.append((interval_M + within_BM + (drawn_BX[:, -1:] * size).astype(np.int64)) % size)
        key_BM, value_BM = different
        depth_BM = draw("depths", num_needles)
        tokens_BT = np.empty((count, self.sequence_length), dtype=np.int64)
        answer_BT = np.zeros(tokens_BT.shape, dtype=bool)
        for row in range(count):
            needles, question = self._written(key_BM[row].tolist(), value_BM[row].tolist())
            cuts = np.rint(self._depths(depth_BM[row]) * self._hay).astype(np.int64)
            order = np.argsort(cuts, kind="stable")
            hay_H = hay_N[begin_B[row] : begin_B[row] + self._hay]
            hay = bytes(np.where(hay_H < 256, hay_H, _DOCUMENT_END).astype(np.uint8))
            edges = [0, *cuts[order].tolist(), self._hay]
            pieces = [hay[: edges[1]]]
            for index, needle in enumerate(order.tolist()):
                pieces += [needles[needle], hay[edges[index + 1] : edges[index + 2]]]
            text = b"".join([*pieces, *(part for part, _ in question)])
            tokens_BT[row] = np.frombuffer(text, dtype=np.uint8)
            end = self.sequence_length
            for part, is_answer in reversed(question):
                answer_BT[row, end - len(part) : end] = is_answer
                end -= len(part)
        return batch_of(tokens_BT, np.where(answer_BT, _FILLER, tokens_BT), answer_BT)

    def _depths(self, drawn_M: NDArray[np.float64]) -> NDArray[np.float64]:
        """Depths of the needles; sorted where their order matters."""
        depth_M, kind = drawn_M.copy(), self.config.kind
        if kind in ("multi_value", "variable_tracking"):
            half = len(depth_M) // 2
            if self.config.depth is not None:
                depth_M[:half] = self.config.depth + (1 - self.config.depth) * depth_M[:half]
            depth_M[:half].sort()
            depth_M[half:].sort()
        if self.config.depth is not None:
            depth_M[0] = self.config.depth
        return depth_M

    def _written(
        self, keys: Sequence[int], values: Sequence[int]
    ) -> tuple[list[bytes], list[tuple[bytes, bool]]]:
        """The needles, and the parts of the question, each with whether it is an answer.

        The first needles are queried: one (single, multi_key) or half of them.
        """
        kind, half = self.config.kind, len(keys) // 2
        names = [_spelled(key, _LETTERS) for key in keys]
        digits = [_spelled(value, "0123456789") for value in values]
        if kind == "variable_tracking":
            # Two chains: each name is called what the one before it is called.
            called = [digits[0], *names[: half - 1], digits[half], *names[half:-1]]
            needles = [f"\n{a} is what is called {b}.\n" for a, b in zip(names, called, strict=True)]
            opening, answers = f"\nWhat is called {digits[0]} is ", names[:half]
        else:
            if kind == "multi_value":
                names = [names[0]] * half + [names[half]] * half
            needles = [f"\nThe number of {a} is {b}.\n" for a, b in zip(names, digits, strict=True)]
            opening, answers = (
                f"\nThe number of {names[0]} is ",
                digits[: half if kind == "multi_value" else 1],
            )
        question = [(opening, False)]
        if kind == "multi_query":
            question = []
            for name, digit_string in zip(names[:half], digits[:half], strict=True):
                question += [(f"\nThe number of {name} is ", False), (digit_string, True)]
        else:
            for index, answer in enumerate(answers):
                question += [(", " if index else "", False), (answer, True)]
        return [text.encode() for text in needles], [(text.encode(), scored) for text, scored in question]

    def num_examples(self, split: str) -> int | None:
        return None

    @property
    def fingerprint(self) -> str:
        c = self.config
        settings = (c.kind, c.sequence_length, c.num_needles, c.depth)
        return hashlib.sha256(f"needle-1 {self._file.fingerprint} {settings}".encode()).hexdigest()[:16]

    def references(self) -> list[Reference]:
        chance = 1 / (26 if self.config.kind == "variable_tracking" else 10)
        right = 1 / self._drawn  # it is the queried one, or its answer is equal by chance
        return [
            Reference(
                name="last shown",
                metric=self.metric,
                value=right + (1 - right) * chance,
                note="what the last needle says, for every answer: no key is read",
            ),
            Reference(name="chance", metric=self.metric, value=chance, note="any digit, or any letter"),
        ]


def _spelled(value: int, digits: str) -> str:
    """A number as five digits of the given alphabet."""
    text = ""
    for _ in range(_WIDTH):
        value, digit = divmod(value, len(digits))
        text += digits[digit]
    return text
