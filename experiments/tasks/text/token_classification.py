"""A tag for each word: named entities and the like, from files, a hub dataset, or generated here.

The default needs no network: short sentences about invented persons, places and
firms. A name can have any type; only its context determines which.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.labelled_rows import Row, value_in
from archbench.experiments.runtime.errors import DataError, nearest
from archbench.experiments.runtime.seeds import stream
from archbench.experiments.tasks.metrics import Reference
from archbench.experiments.tasks.task import TaggedWords
from archbench.experiments.tasks.text.base import Example, Labelled, LabelledConfig, Parsed

METRICS = ("entity_f1", "tag_accuracy")
MADE_SENTENCES = {"train": 4000, "validation": 500, "test": 500}
TEMPLATES = (
    "PER was born in LOC .",
    "Yesterday PER left LOC for LOC .",
    "ORG hired PER in May .",
    "The office of ORG in LOC is closed .",
    "Shares of ORG fell after PER sold them .",
    "Dr. PER works for ORG .",
    "It rained in LOC all week .",
    "PER and PER met near LOC .",
)
"""Sentences of the default; PER, LOC and ORG are replaced by names."""


@dataclass(frozen=True, kw_only=True)
class TagsConfig(LabelledConfig):
    """Words and their tags."""

    made: ClassVar[str] = "synthetic"

    source: str = "synthetic"
    """``synthetic`` (sentences with invented names), ``files`` or ``hub``."""
    tokens_column: str = "tokens"
    """The column of the words, a list; in .conll files the words are always ``tokens``."""
    tags_column: str = "tags"
    """The column of their tags, a list as long; in .conll files the tags are always ``tags``."""
    sequence_length: int = 64
    """Tokens in an example (T), special tokens included; longer sentences are cut into pieces. A sample of N
    examples (``trainer.test_examples=N``) is all pieces of N sentences."""
    metric: str = "entity_f1"
    """Metric of the table: ``entity_f1`` (tags are O, B-TYPE, I-TYPE, perhaps E- and S-) or
    ``tag_accuracy``; both are recorded where tags mark entities."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric not in METRICS:
            raise ValueError(f"metric={self.metric!r} is unknown{nearest(self.metric, METRICS)}")


class Tags(Labelled):
    """A tag at the last token of each word. A long sentence is cut into pieces between words.

    Words of which the tokenizer makes no token, such as single zero-width characters, are not trained on. In
    evaluation they count as tagged ``default_tag``, so that every tokenizer is scored on the same words.
    """

    Config = TagsConfig
    config: TagsConfig
    targets = "tags"

    def __init__(self, config: TagsConfig) -> None:
        self.metric = config.metric
        self.columns = [config.tokens_column, config.tags_column]
        super().__init__(config)
        self._examples["train"] = [example for example in self._examples["train"] if example.tags]
        if not self._examples["train"]:
            raise DataError(f"source={config.source}: the tokenizer makes no token of any word in training")
        if self.metric == "entity_f1" and not is_entity_scheme(self.classes):
            odd = next(tag for tag in self.classes if not is_entity_scheme([tag]))
            raise DataError(
                f"tag '{odd}' marks no entity (O, B-TYPE, I-TYPE, E-TYPE, S-TYPE): "
                "set task.metric=tag_accuracy"
            )

    def made_rows(self) -> Iterator[tuple[str, Row]]:
        c = self.config
        for split, count in MADE_SENTENCES.items():
            rng = np.random.Generator(np.random.PCG64(stream("tags", split)))
            for i in range(count):
                words, tags = _sentence(rng)
                yield split, Row(f"{split} sentence {i}", {c.tokens_column: words, c.tags_column: tags})

    def parse(self, row: Row) -> Parsed:
        c = self.config
        words = _strings(row, c.tokens_column, "tokens_column")
        tags = _strings(row, c.tags_column, "tags_column")
        if len(words) != len(tags):
            raise DataError(f"{row.location}: {len(words)} words and {len(tags)} tags: mend the row")
        return Parsed(row.location, words, tags)

    def find_classes(self, train: Sequence[Parsed]) -> Sequence[str]:
        return sorted({tag for row in train for tag in row.target})

    def encode(self, parsed: Parsed, number: int) -> list[Example]:
        max_tokens, begin = self.sequence_length - self.framing(1), len(self.vocabulary.begin)
        texts, words = [list[int]()], [TaggedWords(number, 0, [], [])]
        for i, (word, tag) in enumerate(zip(parsed.texts, parsed.target, strict=True)):
            tokens = self.tokenizer.encode(f" {word}" if i else word)[:max_tokens]
            if len(texts[-1]) + len(tokens) > max_tokens:
                texts.append([])
                words.append(TaggedWords(number, i, [], []))
            texts[-1] += tokens
            words[-1].tags.append(self.class_number(tag, parsed.location))
            words[-1].positions.append(len(texts[-1]) - 1 + begin if tokens else None)
        examples = []
        for text, piece in zip(texts, words, strict=True):
            tags = [(at, tag) for at, tag in zip(piece.positions, piece.tags, strict=True) if at is not None]
            examples.append(Example(*self.frame([text]), tags=tags, words=piece))
        return examples

    @cached_property
    def default_tag(self) -> int:
        """Return the tag of words that a model does not see: O, or else the most frequent one in training."""
        if "O" in self.classes:
            return self.classes.index("O")
        return self.classes.index(self._most_frequent)

    @property
    def _most_frequent(self) -> str:
        return Counter(tag for row in self.parsed["train"] for tag in row.target).most_common(1)[0][0]

    def sample_ends(self, split: str) -> NDArray[np.int64]:
        """Return the ends of the sentences, as the first piece of an entity does not show where it ends."""
        first = self._first[split]
        row_R = self._held_out_rows[split]
        return np.cumsum(first[row_R + 1] - first[row_R])

    def clustered_by(self, split: str) -> str:
        whole = len(self._examples[split]) == len(self.parsed[split])
        return super().clustered_by(split) if whole else "sentence"

    def references(self) -> list[Reference]:
        """Return the scores of a dictionary that gives each word its most frequent tag in training."""
        seen: dict[str, Counter[str]] = defaultdict(Counter)
        for row in self.parsed["train"]:
            for word, tag in zip(row.texts, row.target, strict=True):
                seen[word][tag] += 1
        usual = self._most_frequent
        true = [list(row.target) for row in self.parsed["test"]]
        guessed = [
            [seen[w].most_common(1)[0][0] if w in seen else usual for w in row.texts]
            for row in self.parsed["test"]
        ]
        if self.metric == "entity_f1":
            pairs = [(entities(a), entities(b)) for a, b in zip(true, guessed, strict=True)]
            total = sum(len(a) + len(b) for a, b in pairs)
            value = 2 * sum(len(a & b) for a, b in pairs) / total if total else 0.0
        else:
            flat = [np.array([tag for tags in rows for tag in tags]) for rows in (true, guessed)]
            value = float((flat[0] == flat[1]).mean())
        return [
            Reference(
                name="most frequent tag",
                metric=self.metric,
                value=value,
                note=f"each word's most frequent tag in training, '{usual}' for words not seen there",
            )
        ]


def _strings(row: Row, column: str, key: str) -> Sequence[str]:
    """The words or tags of a row as strings; class indices are converted."""
    values: Any = value_in(row, column, key)
    if isinstance(values, list | tuple) and not values:
        raise DataError(f"{row.location}: column '{column}' has no words: remove the row, or set task.{key}")
    if not isinstance(values, list | tuple):
        raise DataError(
            f"{row.location}: column '{column}' is not a list of words: mend the row, or set task.{key}"
        )
    if any(value is None or value == "" or value == -1 for value in values):
        raise DataError(f"{row.location}: column '{column}' has gaps: mend the row, or use a split with tags")
    return [str(value) for value in values]


def _sentence(rng: np.random.Generator) -> tuple[list[str], list[str]]:
    """Words and tags of an invented sentence. A name has one word or two."""
    words, tags = [], []
    for part in TEMPLATES[rng.integers(len(TEMPLATES))].split():
        if part not in ("PER", "LOC", "ORG"):
            words.append(part)
            tags.append("O")
            continue
        for i in range(int(rng.integers(1, 3))):
            letters = [rng.choice(list(s)) for _ in range(2) for s in ("bdfgklmnprstvz", "aeiou")]
            words.append("".join(letters).capitalize())
            tags.append(f"{'I' if i else 'B'}-{part}")
    return words, tags


_TAG = re.compile(r"O|[BIES]-.+")


def is_entity_scheme(tags: Iterable[str]) -> bool:
    """Return True if every tag is O or begins with B-, I-, E- or S- and names a type.

    B- begins an entity, I- continues one, O is outside; E- ends one, S- is a single word.
    """
    return all(_TAG.fullmatch(tag) for tag in tags)


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return the entities of a sentence: type, first word, word after the last.

    By the conventions of conlleval, the script of the CoNLL shared tasks, as seqeval implements them: an I-
    outside of an entity begins one, so IOB1, IOB2 and IOBES are all read.
    """
    from seqeval.metrics.sequence_labeling import get_entities  # imports scikit-learn, slow

    return {(entity_type, start, end + 1) for entity_type, start, end in get_entities(list(tags))}
