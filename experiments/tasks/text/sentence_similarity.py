"""Similarity of two texts: pairs with a score, from files, a hub dataset, or generated here.

The default needs no network: sentences in an invented language in which every
meaning has two unlike words. The score is the fraction of meanings that two sentences
have in common, in any order; synonyms must be learned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from archbench.experiments.data.document import text_of_row
from archbench.experiments.data.labelled_rows import Row, value_in
from archbench.experiments.runtime.errors import DataError, nearest
from archbench.experiments.runtime.seeds import stream
from archbench.experiments.tasks.metrics import Reference, pearson, spearman
from archbench.experiments.tasks.text.base import Example, Labelled, LabelledConfig, Parsed

METRICS = {"spearman": spearman, "pearson": pearson}
MADE_PAIRS = {"train": 4000, "validation": 500, "test": 500}
MEANINGS, MEANINGS_IN_SENTENCE = 24, 4
"""Of the invented language, and of each of its sentences."""


@dataclass(frozen=True, kw_only=True)
class SentenceSimilarityConfig(LabelledConfig):
    """Pairs of texts and their scores."""

    made: ClassVar[str] = "synthetic"

    source: str = "synthetic"
    """``synthetic`` (sentences in an invented language), ``files`` or ``hub``."""
    text_column: str = "text"
    """The column of the first text."""
    pair_column: str = "text_pair"
    """The column of the second text."""
    score_column: str = "score"
    """The column of the score."""
    max_score: float = 1.0
    """The score of texts that mean the same, 0 being the lowest: 5 in STS-B. Scores are divided by it."""
    sequence_length: int = 64
    """Tokens in an example (T), special tokens included; each text is cut to half of them."""
    metric: str = "spearman"
    """Metric of the table: ``spearman`` or ``pearson``; both are recorded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric not in METRICS:
            raise ValueError(f"metric={self.metric!r} is unknown{nearest(self.metric, METRICS)}")
        if self.max_score <= 0:
            raise ValueError(f"max_score={self.max_score} must be positive")


class SentenceSimilarity(Labelled):
    """A score in [0, 1] for each pair; each text has half of the tokens."""

    Config = SentenceSimilarityConfig
    config: SentenceSimilarityConfig
    targets = "scores"

    def __init__(self, config: SentenceSimilarityConfig) -> None:
        self.metric = config.metric
        self.columns = [config.text_column, config.pair_column, config.score_column]
        super().__init__(config)

    def made_rows(self) -> Iterator[tuple[str, Row]]:
        c = self.config
        synonyms = _invented_words()
        for split, count in MADE_PAIRS.items():
            rng = np.random.Generator(np.random.PCG64(stream("similarity", split)))
            for i in range(count):
                shared = int(rng.integers(MEANINGS_IN_SENTENCE + 1))
                drawn = rng.permutation(MEANINGS)[: 2 * MEANINGS_IN_SENTENCE - shared]
                first_meanings = drawn[:MEANINGS_IN_SENTENCE]
                second_meanings = rng.permutation(drawn[MEANINGS_IN_SENTENCE - shared :])
                first_text, other_text = (
                    " ".join(synonyms[meaning][rng.integers(2)] for meaning in meanings)
                    for meanings in (first_meanings, second_meanings)
                )
                score = c.max_score * shared / MEANINGS_IN_SENTENCE
                values = {c.text_column: first_text, c.pair_column: other_text, c.score_column: score}
                yield split, Row(f"{split} pair {i}", values)

    def parse(self, row: Row) -> Parsed:
        c = self.config
        texts = [
            text_of_row(row.values, c.text_column, row.location, "task.text_column"),
            text_of_row(row.values, c.pair_column, row.location, "task.pair_column"),
        ]
        value = value_in(row, c.score_column, "score_column")
        try:
            score = float(value) / c.max_score
        except (TypeError, ValueError):
            raise DataError(f"{row.location}: score {value!r} is not a number: mend the row") from None
        if not 0 <= score <= 1:
            raise DataError(
                f"{row.location}: score {value} is outside 0 to {c.max_score:g}: set task.max_score, or mend "
                "the row"
            )
        return Parsed(row.location, texts, score)

    def find_classes(self, train: Sequence[Parsed]) -> Sequence[str]:
        return ()

    def encode(self, parsed: Parsed, number: int) -> list[Example]:
        max_tokens = (self.sequence_length - max(self.framing(2), 3)) // 2
        tokens, segments = self.frame([self.tokenizer.encode(text)[:max_tokens] for text in parsed.texts])
        return [Example(tokens, segments, label=parsed.target)]

    def references(self) -> list[Reference]:
        test = self.parsed["test"]
        words = [[set(text.lower().split()) for text in row.texts] for row in test]
        overlaps_N = np.array([len(a & b) / max(1, len(a | b)) for a, b in words])  # Jaccard indices
        scores_N = np.array([row.target for row in test])
        return [
            Reference(
                name="shared words",
                metric=self.metric,
                value=METRICS[self.metric](scores_N, overlaps_N),
                note="the fraction of different words that both texts have, without training",
            )
        ]


def _invented_words() -> list[tuple[str, str]]:
    """Two synonyms for each meaning, all different."""
    rng = np.random.Generator(np.random.PCG64(stream("similarity", "words")))
    words: dict[str, None] = {}
    while len(words) < 2 * MEANINGS:
        letters = [rng.choice(list(s)) for _ in range(2) for s in ("bdfgklmnprstvz", "aeiou")]
        words["".join(letters)] = None
    unique = list(words)
    return list(zip(unique[::2], unique[1::2], strict=True))
