"""Sequence classification: the class of a text, or of a pair of texts, from one pooled state.

Devlin et al. 2019 (arXiv 1810.04805), section 4.1.

Shapes: B batch, T length, C classes, N examples of a split.
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
from archbench.architectures.layers.readout import SequenceReadout
from archbench.experiments.objectives.fine_tuning.base import (
    ReadoutObjective,
    check_dropout,
    check_pooling,
    pooling_for,
    valid_or_none,
)
from archbench.experiments.objectives.objective import Score, View
from archbench.experiments.tasks.metrics import (
    Likelihood,
    Metric,
    accuracy,
    macro_f1,
    matthews,
    split_metrics,
)
from archbench.experiments.tasks.task import Batch


@dataclass(frozen=True, kw_only=True)
class SequenceClassificationConfig:
    """The readout of a classifier."""

    pooling: str = "auto"
    """The state that represents the text: ``first``, ``last``, ``mean``, or ``auto``: the first token
    of a bidirectional backbone, the last of a causal one."""
    pooler: bool = True
    """A dense layer and tanh before the classifier, as in BERT."""
    dropout: float = 0.1
    """Probability of setting an element of the pooled state to 0 in training."""

    def __post_init__(self) -> None:
        check_pooling(self.pooling)
        check_dropout(self.dropout)


class SequenceClassification(ReadoutObjective):
    """Cross-entropy of the class, a mean over sequences."""

    Config = SequenceClassificationConfig
    config: SequenceClassificationConfig
    targets = "classes"
    likelihood = Likelihood(kind="exact", estimator="softmax over the classes", samples=1)

    def make_readout(self, backbone: Backbone) -> nn.Module:
        c = self.config
        return SequenceReadout(
            backbone.config.width,
            len(self.task.classes),
            pooling=pooling_for(c.pooling, backbone.capabilities),
            pooler=c.pooler,
            dropout=c.dropout,
        )

    def answer_view(self, batch: Batch) -> View:
        assert batch.label_B is not None
        return View(
            tokens_BT=batch.tokens_BT,
            valid_BT=valid_or_none(batch),
            target_BT=batch.tokens_BT,
            weight_BT=torch.zeros(batch.tokens_BT.shape),
            count_B=torch.ones(len(batch.tokens_BT)),
            segments_BT=batch.segments_BT,
            label_B=batch.label_B,
        )

    def loss(self, output: Output, view: View) -> tuple[Tensor, Tensor]:
        assert output.readout is not None
        assert view.label_B is not None
        nats = F.cross_entropy(output.readout.float(), view.label_B, reduction="sum")
        return nats, view.count_B.sum()

    @torch.no_grad()
    def evaluate(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        view = self.answer_view(batch).to(next(model.parameters()).device)
        readout_BC = view.run(model).readout
        assert readout_BC is not None
        assert batch.label_B is not None
        guess_B = readout_BC.argmax(-1).cpu()
        return Score(records=list(zip(batch.label_B.tolist(), guess_B.tolist(), strict=True)))

    def summarise(self, records: Sequence[Any], split: str) -> list[Metric]:
        label_N, guess_N = np.array(records, dtype=np.int64).T
        return split_metrics(
            {
                "accuracy": lambda kept: accuracy(label_N[kept], guess_N[kept]),
                "macro_f1": lambda kept: macro_f1(label_N[kept], guess_N[kept]),
                "matthews": lambda kept: matthews(label_N[kept], guess_N[kept]),
            },
            len(records),
            split,
            first=self.task.metric,
            unit="",
            estimator="most likely class",
            macro=["macro_f1"],
        )
