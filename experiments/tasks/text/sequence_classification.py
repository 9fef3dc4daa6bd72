"""Classification of texts, or of pairs of texts, from files, a hub dataset, or Python's documentation.

The default needs no network: does a paragraph come from the language reference
or from a docstring of the library? As many paragraphs of either.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from archbench.experiments.data.corpus import SPLITS, CorpusConfig
from archbench.experiments.data.document import text_of_row
from archbench.experiments.data.labelled_rows import Row, value_in
from archbench.experiments.data.token_file import TokenFile, open_token_file
from archbench.experiments.data.tokenizers.tokenizer import TokenizerConfig
from archbench.experiments.runtime.errors import DataError, nearest
from archbench.experiments.tasks.metrics import Reference
from archbench.experiments.tasks.text.base import Example, Labelled, LabelledConfig, Parsed, cut_longer

METRICS = ("accuracy", "macro_f1", "matthews")
SOURCES = {"reference": "embedded_reference", "library": "embedded_library"}
"""The classes of the default, and the halves of the embedded corpus they come from."""
_SHORTEST = 80
"""Shorter paragraphs (in characters) are left out."""


@dataclass(frozen=True, kw_only=True)
class SentencesConfig(LabelledConfig):
    """Classification of texts."""

    made: ClassVar[str] = "embedded"

    source: str = "embedded"
    """``embedded`` (paragraphs of Python's documentation), ``files`` or ``hub``."""
    text_column: str = "text"
    """The column of the text."""
    pair_column: str | None = None
    """The column of the second text, where the class is one of a pair; null if it is missing."""
    label_column: str = "label"
    """The column of the class: a name or an integer."""
    metric: str = "accuracy"
    """Metric of the table: ``accuracy``, ``macro_f1`` or ``matthews``; all are recorded."""
    cache_dir: str = "data-cache"
    """Folder of the prepared documentation (embedded)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric not in METRICS:
            raise ValueError(f"metric={self.metric!r} is unknown{nearest(self.metric, METRICS)}")
        if self.source == self.made and self.pair_column is not None:
            raise ValueError(f"source={self.source} has no pairs: set pair_column=null, or another source")


class Sentences(Labelled):
    """A class for each text or pair of texts."""

    Config = SentencesConfig
    config: SentencesConfig
    targets = "classes"

    def __init__(self, config: SentencesConfig) -> None:
        self.metric = config.metric
        columns = (config.text_column, config.pair_column, config.label_column)
        self.columns = [column for column in columns if column is not None]
        super().__init__(config)
        if len(self.classes) < 2:
            raise DataError(
                f"the training split has {len(self.classes)} class: classification takes two or more"
            )

    def made_rows(self) -> Iterator[tuple[str, Row]]:
        c = self.config
        plain = TokenizerConfig(kind="bytes", post_processing=["eos"])
        files = {
            name: open_token_file(CorpusConfig(source=source), plain, num_sentinels=0, cache_dir=c.cache_dir)
            for name, source in SOURCES.items()
        }
        for split in SPLITS:
            texts = {name: _paragraphs(file, split) for name, file in files.items()}
            rarest = min(len(paragraphs) for paragraphs in texts.values())
            for name, paragraphs in texts.items():
                for i in range(rarest):
                    text = paragraphs[i * len(paragraphs) // rarest]  # evenly spaced, over all documents
                    yield split, Row(f"{name} {i}", {c.text_column: text, c.label_column: name})

    def parse(self, row: Row) -> Parsed:
        c = self.config
        texts = [text_of_row(row.values, c.text_column, row.location, "task.text_column")]
        if c.pair_column is not None:
            texts.append(text_of_row(row.values, c.pair_column, row.location, "task.pair_column"))
        label = value_in(row, c.label_column, "label_column")
        if not isinstance(label, str | int) or label == -1:
            raise DataError(
                f"{row.location}: column '{c.label_column}' has {label!r}, not the name or number of a class "
                "(-1 is the hub's sign of a hidden one): use rows with labels"
            )
        return Parsed(row.location, texts, str(label))

    def find_classes(self, train: Sequence[Parsed]) -> Sequence[str]:
        return sorted({row.target for row in train})

    def encode(self, parsed: Parsed, number: int) -> list[Example]:
        parts = [self.tokenizer.encode(text) for text in parsed.texts]
        tokens, segments = self.frame(cut_longer(parts, self.sequence_length - self.framing(len(parts))))
        return [Example(tokens, segments, label=self.class_number(parsed.target, parsed.location))]

    def references(self) -> list[Reference]:
        majority = Counter(row.target for row in self.parsed["train"]).most_common(1)[0][0]
        share = np.mean([row.target == majority for row in self.parsed["test"]])
        return [
            Reference(
                name="majority",
                metric="accuracy",
                value=float(share),
                note=f"always '{majority}', the most frequent class in training",
            )
        ]


def _paragraphs(file: TokenFile, split: str) -> list[str]:
    """Paragraphs of the documents of a split, their lines joined."""
    tokens_N = np.asarray(file.tokens[split])
    pieces = np.split(tokens_N, np.flatnonzero(tokens_N == file.tokenizer.vocabulary.eos))
    text = "\n\n".join(file.tokenizer.decode(piece) for piece in pieces)
    paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text)]
    return [paragraph for paragraph in paragraphs if len(paragraph) >= _SHORTEST]
