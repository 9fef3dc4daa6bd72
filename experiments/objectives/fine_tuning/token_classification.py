"""Token classification: a tag for each word, such as the names of persons and places in a sentence.

Devlin et al. 2019 (arXiv 1810.04805), section 5.3. A word is tagged at its last
token, where a causal backbone has also read all of it.

Shapes: B batch, T length, C tags, N sequences of a split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from archbench.architectures.backbone import Backbone, Output
from archbench.architectures.layers.readout import TokenReadout
from archbench.experiments.objectives.fine_tuning.base import ReadoutObjective, check_dropout, valid_or_none
from archbench.experiments.objectives.objective import Score, View
from archbench.experiments.tasks.metrics import Likelihood, Metric, split_metrics
from archbench.experiments.tasks.task import Batch, TaggedWords
from archbench.experiments.tasks.text.token_classification import entities, is_entity_scheme


@dataclass(frozen=True, kw_only=True)
class TokenClassificationConfig:
    """The readout of a tagger."""

    dropout: float = 0.1
    """Probability of setting an element of a token's state to 0 in training."""

    def __post_init__(self) -> None:
        check_dropout(self.dropout)


class TaggedPiece(NamedTuple):
    """The tags of consecutive words of a sentence, and those that a model gives them."""

    sentence: int
    begin: int
    """Words of the sentence before these."""
    tags: Sequence[int]
    guesses: Sequence[int]


def sentences_of(view: View) -> list[TaggedWords]:
    """Return the tagged tokens of each sequence as the words of a sentence, for tasks that name no words."""
    return [
        TaggedWords(-1, 0, tags_T[weight_T > 0].tolist(), weight_T.nonzero().flatten().tolist())
        for tags_T, weight_T in zip(view.target_BT, view.weight_BT, strict=True)
    ]


def joined_sentences(pieces: Sequence[TaggedPiece]) -> list[tuple[list[int], list[int]]]:
    """Return tags and guesses of sentences: pieces are joined where one begins after another's last word."""
    sentences: list[tuple[list[int], list[int]]] = []
    sentence, end = -1, 0
    for piece in sorted(pieces, key=lambda piece: (piece.sentence, piece.begin)):
        if piece.sentence != sentence or piece.begin != end:
            sentences.append(([], []))
        tags, guesses = sentences[-1]
        tags += piece.tags
        guesses += piece.guesses
        sentence, end = piece.sentence, piece.begin + len(piece.tags)
    return sentences


class TokenClassification(ReadoutObjective):
    """Cross-entropy of the tags, the mean over tagged tokens."""

    Config = TokenClassificationConfig
    config: TokenClassificationConfig
    targets = "tags"
    likelihood = Likelihood(kind="exact", estimator="softmax over the tags", samples=1)

    def make_readout(self, backbone: Backbone) -> nn.Module:
        return TokenReadout(backbone.config.width, len(self.task.classes), dropout=self.config.dropout)

    def answer_view(self, batch: Batch) -> View:
        assert batch.tag_BT is not None
        tagged_BT = batch.answer_BT & batch.valid_BT
        return View(
            tokens_BT=batch.tokens_BT,
            valid_BT=valid_or_none(batch),
            target_BT=batch.tag_BT,
            weight_BT=tagged_BT.float(),
            count_B=tagged_BT.sum(1).float(),
        )

    def logits(self, output: Output, view: View) -> Tensor:
        """The scores of the tags, (B, T, C)."""
        assert output.readout is not None
        return output.readout

    @torch.no_grad()
    def evaluate(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        view = self.answer_view(batch)
        on_device = view.to(next(model.parameters()).device)
        guess_BT = self.logits(on_device.run(model), on_device).argmax(-1).cpu()
        records = []
        for words, guess_T in zip(batch.words or sentences_of(view), guess_BT.tolist(), strict=True):
            guesses = [
                self.task.default_tag if at is None else guess_T[at]  # type: ignore[attr-defined]
                for at in words.positions
            ]
            records.append(TaggedPiece(words.sentence, words.begin, words.tags, guesses))
        return Score(records=records)

    def summarise(self, records: Sequence[Any], split: str) -> list[Metric]:
        """Compute the fraction of right tags; where tags mark entities, also their precision, recall and F1.

        Pieces of a sentence are joined, so that an entity that a cut goes through counts once.
        An entity is right if type, beginning and end are right, as in the CoNLL
        shared tasks (Tjong Kim Sang and De Meulder 2003).
        """
        sentences = joined_sentences(records)
        counts_N5 = np.array([self._counts(*sentence) for sentence in sentences])

        def ratio(above: list[int], below: list[int]) -> Any:
            def statistic(index: NDArray[np.int64]) -> float:
                total = counts_N5[index][:, below].sum()
                return float(counts_N5[index][:, above].sum() / total) if total else 0.0

            return statistic

        num_words, right, true, guessed, matched = range(5)
        statistics = {"tag_accuracy": ratio([right], [num_words])}
        if is_entity_scheme(self.task.classes):
            statistics |= {
                # 2 x matched: fancy indexing repeats the column.
                "entity_f1": ratio([matched, matched], [true, guessed]),
                "entity_precision": ratio([matched], [guessed]),
                "entity_recall": ratio([matched], [true]),
            }
        metrics = split_metrics(
            statistics,
            len(sentences),
            split,
            first=self.task.metric,
            unit="share",
            estimator="most likely tag of each word",
            cluster_N=np.arange(len(sentences)),
        )
        return [replace(metric, items=len(records), clusters=len(sentences)) for metric in metrics]

    def _counts(self, tags: list[int], guesses: list[int]) -> tuple[int, ...]:
        """Count, in one sequence, tags, right tags, and entities: true, guessed and matched ones."""
        true, guessed = ([self.task.classes[tag] for tag in row] for row in (tags, guesses))
        right = sum(a == b for a, b in zip(true, guessed, strict=True))
        if not is_entity_scheme(self.task.classes):
            return len(true), right, 0, 0, 0
        labelled, predicted = entities(true), entities(guessed)
        return len(true), right, len(labelled), len(predicted), len(labelled & predicted)
