"""Sentence similarity: the cosine of two texts' mean-pooled vectors, fitted to a score.

Reimers and Gurevych 2019, "Sentence-BERT" (arXiv 1908.10084), section 3: both
texts go through the same model, neither sees the other.

Shapes: B batch, T length of a pair, U length of one text, D d_model, N pairs of a split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archbench.architectures.backbone import Backbone, Output
from archbench.architectures.layers.readout import VectorReadout
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.objectives.fine_tuning.base import ReadoutObjective, check_pooling, pooling_for
from archbench.experiments.objectives.objective import Score, View
from archbench.experiments.tasks.metrics import Likelihood, Metric, pearson, spearman, split_metrics
from archbench.experiments.tasks.task import Batch


@dataclass(frozen=True, kw_only=True)
class SimilarityConfig:
    """The vectors that are compared."""

    pooling: str = "mean"
    """Pooling of the states to a vector: ``mean``, ``first``, ``last``, or ``auto`` (first or last, as the
    backbone is bidirectional or causal)."""

    def __post_init__(self) -> None:
        check_pooling(self.pooling)


@dataclass(frozen=True, kw_only=True)
class TwoTexts(View):
    """Pairs of texts that the model reads one apart from the other; the parts of ``View`` are the first's."""

    other_BT: Tensor
    other_valid_BT: Tensor

    @property
    def passes(self) -> int:
        return 2

    def run(self, model: Backbone) -> Output:
        """Run one forward pass over all 2B texts; the readout is (2, B, D)."""
        assert self.valid_BT is not None
        output = model(
            torch.cat([self.tokens_BT, self.other_BT]),
            valid_BT=torch.cat([self.valid_BT, self.other_valid_BT]),
        )
        assert output.readout is not None
        output.readout = output.readout.unflatten(0, (2, -1))
        # Summed over 2B texts, to be divided by the number of pairs.
        output.auxiliary = {name: value / 2 for name, value in output.auxiliary.items()}
        return output


class Similarity(ReadoutObjective):
    """Squared error of the cosine, a mean over pairs."""

    Config = SimilarityConfig
    config: SimilarityConfig
    targets = "scores"
    likelihood = Likelihood(kind="exact", estimator="none: a regression", samples=1)

    def make_readout(self, backbone: Backbone) -> nn.Module:
        return VectorReadout(pooling_for(self.config.pooling, backbone.capabilities))

    def answer_view(self, batch: Batch) -> TwoTexts:
        assert batch.label_B is not None
        (first_BU, first_valid_BU), (other_BU, other_valid_BU) = (
            one_text(batch, segment, self.vocabulary) for segment in (0, 1)
        )
        return TwoTexts(
            tokens_BT=first_BU,
            valid_BT=first_valid_BU,
            target_BT=first_BU,
            weight_BT=torch.zeros(first_BU.shape),
            count_B=torch.ones(len(first_BU)),
            label_B=batch.label_B,
            other_BT=other_BU,
            other_valid_BT=other_valid_BU,
        )

    def _cosine(self, output: Output) -> Tensor:
        assert output.readout is not None
        first_BD, other_BD = output.readout.float()
        cosine_B = F.cosine_similarity(first_BD, other_BD, dim=-1)
        # Vectors with an infinite norm would have the cosine 0.
        is_finite_B = output.readout.float().norm(dim=-1).isfinite().all(0)
        return cosine_B.where(is_finite_B, torch.nan)

    def loss(self, output: Output, view: View) -> tuple[Tensor, Tensor]:
        assert view.label_B is not None
        return (self._cosine(output) - view.label_B).square().sum(), view.count_B.sum()

    @torch.no_grad()
    def evaluate(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        view = self.answer_view(batch).to(next(model.parameters()).device)
        cosine_B = self._cosine(view.run(model))
        assert batch.label_B is not None
        return Score(records=list(zip(batch.label_B.tolist(), cosine_B.tolist(), strict=True)))

    def summarise(self, records: Sequence[Any], split: str) -> list[Metric]:
        true_N, cosine_N = np.array(records, dtype=np.float64).T
        return split_metrics(
            {
                "spearman": lambda kept: spearman(true_N[kept], cosine_N[kept]),
                "pearson": lambda kept: pearson(true_N[kept], cosine_N[kept]),
            },
            len(records),
            split,
            first=self.task.metric,
            unit="correlation",
            estimator="cosine of the vectors",
        )


def one_text(batch: Batch, segment: int, vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
    """``[bos] text [eos]`` of one text of each pair ``[bos] a [eos] b [eos]``, and which tokens are real.

    Every text is padded to half of the pair's length, regardless of its length.
    """
    assert batch.segments_BT is not None
    B, T = batch.tokens_BT.shape
    width = (T - 3) // 2 + 2
    tokens_BU = torch.full((B, width), vocabulary.pad)
    valid_BU = torch.zeros((B, width), dtype=torch.bool)
    frame = {*vocabulary.begin, *vocabulary.end}
    for row in range(B):
        mine_T = batch.valid_BT[row] & (batch.segments_BT[row] == segment)
        text = batch.tokens_BT[row][mine_T].tolist()
        # The tokens between those of the pair's frame.
        inside = [index for index, token in enumerate(text) if token not in frame]
        text = text[inside[0] : inside[-1] + 1] if inside else []
        framed = [*vocabulary.begin, *text, *vocabulary.end]
        assert len(framed) <= width, "the task limits each text to half of the tokens"
        tokens_BU[row, : len(framed)] = torch.tensor(framed)
        valid_BU[row, : len(framed)] = True
    return tokens_BU, valid_BU
