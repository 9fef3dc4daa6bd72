"""Classification: the answer is one of a few labels, read at the last position or from the mean of all.

Shapes: B batch, T length, V vocabulary, C labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archbench.architectures.backbone import Backbone, Capabilities, Output
from archbench.architectures.layers.embedding import read_values
from archbench.architectures.layers.readout import SequenceReadout
from archbench.experiments.objectives.objective import Objective, Score, View
from archbench.experiments.runtime.errors import ConfigError, DataError, nearest
from archbench.experiments.tasks.metrics import Likelihood
from archbench.experiments.tasks.task import Batch, Task

POOLINGS = ("answer", "mean")


@dataclass(frozen=True, kw_only=True)
class ClassificationConfig:
    """The place that the label is read from."""

    pooling: str = "answer"
    """``answer``: at the position of the answer, after all other tokens. ``mean``: from the mean of the
    states of all tokens, without a position for the answer, as S4 reads Long Range Arena (arXiv
    2111.00396)."""
    real_values: bool = False
    """Pixels are values from -1 to 1, read by a linear layer, and not token ids with an embedding each. For
    tasks of pictures."""

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise ValueError(f"pooling={self.pooling!r} is unknown{nearest(self.pooling, POOLINGS)}")


class Classification(Objective):
    """Cross-entropy over the task's labels, by default at the answer position, which shows the mask token.

    At this position a causal model has read everything and a bidirectional one attends
    to everything, so both solve the same problem.
    """

    Config = ClassificationConfig
    config: ClassificationConfig
    likelihood = Likelihood(kind="exact", estimator="softmax over the labels", samples=1)

    @classmethod
    def missing_capability(cls, capabilities: Capabilities) -> str | None:
        if capabilities.causal or capabilities.bidirectional:
            return None
        return "a causal or a bidirectional backbone"

    @classmethod
    def incompatibility(cls, task: type[Task]) -> str | None:
        return None if task.has_labels else "the task has no labels to choose from"

    def __init__(self, config: ClassificationConfig, task: Task) -> None:
        super().__init__(config, task)
        if config.real_values and task.levels < 2:
            raise ConfigError(
                "objective.real_values=true: this task has no pixels; leave it false, or choose "
                "a task of pictures"
            )

    def make_readout(self, backbone: Backbone) -> nn.Module | None:
        if self.config.real_values:
            read_values(backbone, self.task.levels)
        if self.config.pooling == "answer":
            return None
        return SequenceReadout(
            backbone.config.width, len(self.task.labels), pooling="mean", pooler=False, dropout=0.0
        )

    def view(self, batch: Batch, generator: torch.Generator) -> View:
        return self.answer_view(batch)

    def answer_view(self, batch: Batch) -> View:
        if batch.answer_BT[:, :-1].any():
            raise DataError(
                "classification reads its label at the last position; this task has others before it"
            )
        if self.config.pooling == "mean":
            return self._pooled_view(batch)
        return View(
            tokens_BT=batch.context_BT.masked_fill(batch.answer_BT, self.vocabulary.mask),
            valid_BT=None if batch.valid_BT.all() else batch.valid_BT,
            target_BT=batch.tokens_BT,
            weight_BT=batch.answer_BT.float(),
            count_B=batch.answer_BT.sum(1).float(),
        )

    def _pooled_view(self, batch: Batch) -> View:
        """All tokens but the answer; padding before a sequence is moved after it."""
        tokens_BT, valid_BT = batch.context_BT[:, :-1], batch.valid_BT[:, :-1]
        if self.task.blank is not None:
            valid_BT = valid_BT & (tokens_BT != self.task.blank)
            order_BT = (~valid_BT).int().argsort(dim=1, stable=True)
            tokens_BT, valid_BT = tokens_BT.gather(1, order_BT), valid_BT.gather(1, order_BT)
            tokens_BT = tokens_BT.masked_fill(~valid_BT, self.vocabulary.pad)
        label_of = {token: index for index, token in enumerate(self.task.labels)}
        return View(
            tokens_BT=tokens_BT,
            valid_BT=None if valid_BT.all() else valid_BT,
            target_BT=tokens_BT,
            weight_BT=torch.zeros(tokens_BT.shape),
            count_B=torch.ones(len(tokens_BT)),
            label_B=torch.tensor([label_of[token] for token in batch.tokens_BT[:, -1].tolist()]),
        )

    def with_scored_positions(self, view: View) -> View:
        return super().with_scored_positions(view) if view.label_B is None else view

    def loss(self, output: Output, view: View) -> tuple[Tensor, Tensor]:
        if view.label_B is None:
            return super().loss(output, view)
        assert output.readout is not None
        return F.cross_entropy(output.readout.float(), view.label_B, reduction="sum"), view.count_B.sum()

    @torch.no_grad()
    def evaluate(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        if self.config.pooling == "answer":
            return super().evaluate(model, batch, generators)
        view = self.answer_view(batch).to(next(model.parameters()).device)
        readout_BC = view.run(model).readout
        assert readout_BC is not None
        assert view.label_B is not None
        return Score(accuracy_B=(readout_BC.argmax(-1) == view.label_B).double().cpu())

    def logits(self, output: Output, view: View) -> Tensor:
        """At the answer, only the labels compete: in training and in the final accuracy."""
        logits_BTV = output.logits_BTV
        other_V = torch.ones(logits_BTV.shape[-1], dtype=torch.bool, device=logits_BTV.device)
        other_V[list(self.task.labels)] = False
        # Positions without an answer have targets outside the labels; only the scored rows may be masked.
        closed_BTV = (view.weight_BT > 0)[..., None] & other_V
        return logits_BTV.masked_fill(closed_BTV, -torch.inf)

    def likelihood_score(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        raise DataError("classification scores labels, not whole texts")
