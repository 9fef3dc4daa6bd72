"""Base class of the tasks with labelled texts: rows, tokens, order, padding.

An example is ``[bos] a [eos]`` or ``[bos] a [eos] b [eos]`` (BERT's form, with
bos for CLS and eos for SEP), padded on the right to T tokens. In training, each
epoch visits all examples in a new order. Classes are those of the training
split; the tokenizer is also learned there.

Shapes: B examples, T tokens.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from archbench.experiments.data.corpus import SPLITS
from archbench.experiments.data.counter_rng import epoch_order, permute
from archbench.experiments.data.labelled_rows import Row, RowsConfig, read_rows
from archbench.experiments.data.tokenizers.make_tokenizer import train_tokenizer
from archbench.experiments.data.tokenizers.tokenizer import TextTokenizer, TokenizerConfig
from archbench.experiments.runtime.errors import DataError, nearest
from archbench.experiments.runtime.seeds import stream
from archbench.experiments.tasks.task import Batch, TaggedWords, Task


class Parsed(NamedTuple):
    """A row as the task reads it."""

    location: str
    texts: Sequence[str]
    """The text, or both texts of a pair, or the tokens of a sentence."""
    target: Any
    """The name of the class, the score, or the tags of the tokens."""


class Example(NamedTuple):
    """Tokens and their labels."""

    tokens: NDArray[np.int32]
    segments: NDArray[np.int8]
    """0 up to the end of the first text, 1 in the second."""
    label: float = 0
    tags: Sequence[tuple[int, int]] = ()
    """Position and number of each tag."""
    words: TaggedWords | None = None
    """The words that are tagged, those without tokens included."""


@dataclass(frozen=True, kw_only=True)
class LabelledConfig(RowsConfig):
    """Rows, a tokenizer and a length."""

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """The tokenizer; its post-processing is not used."""
    sequence_length: int = 128
    """Tokens in an example (T), special tokens included; what is longer is cut."""
    num_sentinels: int = 28
    """Sentinel ids, never used here: models of text have them, and the vocabularies must agree."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sequence_length < 8:
            raise ValueError(f"sequence_length={self.sequence_length} must be at least 8")
        if self.num_sentinels < 0:
            raise ValueError(f"num_sentinels={self.num_sentinels} must not be negative")


class Labelled(Task):
    """Base class. Building the task reads and tokenises every row."""

    config: LabelledConfig
    tokenizer: TextTokenizer
    columns: Sequence[str]
    """The columns that are read."""

    def __init__(self, config: LabelledConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.parsed: dict[str, list[Parsed]] = {split: [] for split in SPLITS}
        made = config.source == config.made
        for split, row in self.made_rows() if made else read_rows(config, self.columns):
            self.parsed[split].append(self.parse(row))
        for split, rows in self.parsed.items():
            if not rows:
                raise DataError(
                    f"source={config.source}: no rows in the {split} split: give more rows, or name the "
                    "splits (task.validation_paths, task.test_paths; task.validation_split, task.test_split)"
                )
            if not any(text.strip() for row in rows for text in row.texts):
                raise DataError(
                    f"source={config.source}: all {len(rows)} texts of the {split} split are blank "
                    f"(columns {', '.join(self.columns)}): name the column of the text, or mend the rows"
                )
        train_texts = (text for row in self.parsed["train"] for text in row.texts)
        self.tokenizer = train_tokenizer(config.tokenizer, config.num_sentinels, train_texts)
        self.vocabulary = self.tokenizer.vocabulary
        self.classes = self.find_classes(self.parsed["train"])
        self._examples: dict[str, list[Example]] = {}
        self._first: dict[str, NDArray[np.int64]] = {}
        """The first example of each row, and the number of examples."""
        for split, rows in self.parsed.items():
            examples = [self.encode(row, number) for number, row in enumerate(rows)]
            self._examples[split] = [example for pieces in examples for example in pieces]
            self._first[split] = np.cumsum([0, *map(len, examples)])

    @abstractmethod
    def made_rows(self) -> Iterator[tuple[str, Row]]:
        """The rows that the task generates (``config.made``), with their splits."""

    @abstractmethod
    def parse(self, row: Row) -> Parsed:
        """Reads a row. Raises DataError naming its place."""

    @abstractmethod
    def find_classes(self, train: Sequence[Parsed]) -> Sequence[str]:
        """The names of the classes or tags."""

    @abstractmethod
    def encode(self, parsed: Parsed, number: int) -> list[Example]:
        """Return the examples of row ``number`` of a split: one, or multiple if it is cut into pieces."""

    def frame(self, parts: Sequence[list[int]]) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
        """``[bos] a [eos] b [eos]``, or what the tokenizer of a folder makes of it, and its segments."""
        tokens, segments = self.tokenizer.frame(parts)
        return np.array(tokens, dtype=np.int32), np.array(segments, dtype=np.int8)

    def framing(self, texts: int) -> int:
        """The number of special tokens added to one or two texts."""
        return len(self.tokenizer.frame([[]] * texts)[0])

    def class_number(self, name: str, location: str) -> int:
        """The index of a class or tag. Raises DataError for one that the training split lacks."""
        if name not in self.classes:
            raise DataError(
                f"{location}: '{name}' is not in the training split{nearest(name, self.classes)}: mend the "
                "row, or add rows like it to the training split"
            )
        return self.classes.index(name)

    def batch(self, split: str, seed: int, start: int, count: int) -> Batch:
        examples = self._examples[split]
        index_B = np.arange(start, start + count, dtype=np.int64)
        if split == "train":
            order_B = epoch_order(seed, index_B, len(examples))
        elif start + count > len(examples):
            raise ValueError(
                f"the {split} split has {len(examples)} examples; {count} were requested from {start} on"
            )
        else:
            order_B = self._held_out_order[split][index_B]
        chosen = [examples[index] for index in order_B.tolist()]
        shape = (count, self.sequence_length)
        tokens_BT = torch.full(shape, self.vocabulary.pad)
        valid_BT, answer_BT = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
        segments_BT, tag_BT = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
        for row, example in enumerate(chosen):
            length = len(example.tokens)
            tokens_BT[row, :length] = torch.from_numpy(example.tokens)
            segments_BT[row, :length] = torch.from_numpy(example.segments)
            valid_BT[row, :length] = True
            for position, tag in example.tags:
                tag_BT[row, position], answer_BT[row, position] = tag, True
        label_dtype = torch.float32 if self.targets == "scores" else torch.int64
        return Batch(
            tokens_BT=tokens_BT,
            context_BT=tokens_BT,
            answer_BT=answer_BT,
            valid_BT=valid_BT,
            split=split,
            segments_BT=segments_BT if segments_BT.any() else None,
            label_B=None
            if self.targets == "tags"
            else torch.tensor([e.label for e in chosen], dtype=label_dtype),
            tag_BT=tag_BT if self.targets == "tags" else None,
            words=[e.words for e in chosen if e.words is not None] if self.targets == "tags" else None,
        )

    @cached_property
    def _held_out_rows(self) -> dict[str, NDArray[np.int64]]:
        """Return the rows (R,) of each held-out split in random order.

        They are shuffled equally for every seed: files are often sorted by class, and a run may score a few.
        """
        counts = {split: len(self._first[split]) - 1 for split in SPLITS[1:]}
        return {split: permute(stream(split, "order"), np.arange(n), n) for split, n in counts.items()}

    @cached_property
    def _held_out_order(self) -> dict[str, NDArray[np.int64]]:
        """Return the examples (N,) of each held-out split: those of the rows in order, pieces together."""
        return {
            split: np.concatenate([np.arange(*self._first[split][row : row + 2]) for row in row_R.tolist()])
            for split, row_R in self._held_out_rows.items()
        }

    def num_examples(self, split: str) -> int:
        """Examples of the split; for ``train``, of one epoch (training may continue after it)."""
        return len(self._examples[split])

    @cached_property
    def fingerprint(self) -> str:  # type: ignore[override]
        digest = hashlib.sha256(repr(("labelled-1", self.sequence_length, self.classes)).encode())
        for split in SPLITS:
            for example in self._examples[split]:
                digest.update(repr((split, example.label, example.tags)).encode())
                digest.update(example.tokens.tobytes() + example.segments.tobytes())
                words = example.words
                if words is not None and (words.begin or None in words.positions):
                    digest.update(repr(words).encode())
        return digest.hexdigest()[:16]


def cut_longer(parts: Sequence[list[int]], max_tokens: int) -> list[list[int]]:
    """The parts cut at their ends until they fit, token by token from the longest (as BERT's code does)."""
    lengths = [len(part) for part in parts]
    while sum(lengths) > max_tokens:
        longest = lengths.index(max(lengths))
        lengths[longest] -= 1
    return [part[:length] for part, length in zip(parts, lengths, strict=True)]
