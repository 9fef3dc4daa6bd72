"""Causal language modelling: predict each token from those before it.

Shapes: B batch, T length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from architectures.backbone import Backbone, Capabilities
from experiments.objectives.decoding.sampling import PrefillState, pad_right
from experiments.objectives.objective import (
    Objective,
    Score,
    TokenScores,
    View,
    documents,
    scored_bytes,
)
from experiments.tasks.likelihood import Likelihood
from experiments.tasks.task import Batch


@dataclass(frozen=True, kw_only=True)
class CausalLMConfig:
    """Causal language modelling."""

    separate_documents: bool = False
    """Documents that share a window do not see each other, and each begins at position 0."""


class CausalLM(Objective):
    """Next-token prediction, behind a begin token, so that the first token is scored too."""

    Config = CausalLMConfig
    config: CausalLMConfig
    likelihood = Likelihood(kind="exact", estimator="chain rule", samples=1)

    @classmethod
    def missing_capability(cls, capabilities: Capabilities) -> str | None:
        return None if capabilities.causal else "a causal backbone: one that cannot see the token it predicts"

    def view(self, batch: Batch, generator: torch.Generator) -> View:
        return self.answer_view(batch)

    def answer_view(self, batch: Batch) -> View:
        begin_B1 = torch.full_like(batch.tokens_BT[:, :1], self.vocabulary.bos)
        scored_BT = batch.answer_BT & batch.valid_BT
        shown_BT = torch.cat([begin_B1, batch.context_BT[:, :-1]], dim=1)
        return View(
            tokens_BT=shown_BT,
            valid_BT=None,  # padding stands on the right, where a causal model does not look
            target_BT=batch.tokens_BT,
            weight_BT=scored_BT.float(),
            count_B=scored_BT.sum(1).float(),
            documents_BT=documents(shown_BT, self.vocabulary) if self.config.separate_documents else None,
        )

    def likelihood_score(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        view = self.answer_view(batch).to(next(model.parameters()).device)
        nats_BT = self.nats(view.run(model), view).double()
        scored_BT = batch.answer_BT & batch.valid_BT
        return Score(
            nats_B=nats_BT.sum(1).cpu(),
            bytes_B=scored_bytes(batch, scored_BT),
            by_token=TokenScores.of(batch, nats_BT.cpu(), scored_BT, scored_BT),
        )

    def prefill_state(
        self, model: Backbone, prompts: Sequence[Sequence[int]], max_tokens: int
    ) -> PrefillState:
        device = next(model.parameters()).device
        rows = [[self.vocabulary.bos, *prompt] for prompt in prompts]
        unread_BT, valid_BT = pad_right(rows, self.vocabulary.pad, device)
        state = model.start(len(rows), unread_BT.shape[1] + max_tokens)
        return PrefillState(state=state, unread_BT=unread_BT, valid_BT=valid_BT)
