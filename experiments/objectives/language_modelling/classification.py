"""Classification: the answer is one of a few labels, read at the last position.

Shapes: B batch, T length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from architectures.backbone import Backbone, Capabilities, Output
from experiments.objectives.objective import Objective, Score, View
from experiments.runtime.errors import DataError
from experiments.tasks.likelihood import Likelihood
from experiments.tasks.task import Batch, Task


@dataclass(frozen=True, kw_only=True)
class ClassificationConfig:
    """Classification has nothing to set."""


class Classification(Objective):
    """Cross-entropy over the task's labels, at the answer position, which shows the mask token.

    A causal model has read everything by then and a bidirectional one sees
    everything anyway, so both are asked the same question.
    """

    Config = ClassificationConfig
    likelihood = Likelihood(kind="exact", estimator="softmax over the labels", samples=1)

    @classmethod
    def missing_capability(cls, capabilities: Capabilities) -> str | None:
        if capabilities.causal or capabilities.bidirectional:
            return None
        return "a causal or a bidirectional backbone"

    @classmethod
    def incompatibility(cls, task: type[Task]) -> str | None:
        return None if task.has_labels else "the task has no labels to choose from"

    def view(self, batch: Batch, generator: torch.Generator) -> View:
        return self.answer_view(batch)

    def answer_view(self, batch: Batch) -> View:
        if batch.answer_BT[:, :-1].any():
            raise DataError(
                "classification reads its label at the last position; this task has others before it"
            )
        return View(
            tokens_BT=batch.context_BT.masked_fill(batch.answer_BT, self.vocabulary.mask),
            valid_BT=None if batch.valid_BT.all() else batch.valid_BT,
            target_BT=batch.tokens_BT,
            weight_BT=batch.answer_BT.float(),
            count_B=batch.answer_BT.sum(1).float(),
        )

    def logits(self, output: Output, view: View) -> Tensor:
        """At the answer, only the labels compete: in training and in the final accuracy alike."""
        logits_BTV = output.logits_BTV
        other_V = torch.ones(logits_BTV.shape[-1], dtype=torch.bool, device=logits_BTV.device)
        other_V[list(self.task.labels)] = False
        # Positions without an answer have targets outside the labels; only the scored rows may be masked.
        closed_BTV = (view.weight_BT > 0)[..., None] & other_V
        return logits_BTV.masked_fill(closed_BTV, -torch.inf)

    def likelihood_score(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        raise DataError("classification scores labels, not whole texts")
