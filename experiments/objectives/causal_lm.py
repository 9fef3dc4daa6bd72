"""Causal language modelling: predict each token from those before it.

Shapes: B batch, T length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from architectures.backbone import Backbone, Capabilities
from experiments.objectives.objective import (
    Likelihood,
    Objective,
    Score,
    View,
    scored_bytes,
    write_on,
)
from experiments.tasks.task import Batch


@dataclass(frozen=True, kw_only=True)
class CausalLMConfig:
    """Causal language modelling has nothing to set."""


class CausalLM(Objective):
    """Next-token prediction, behind a begin token, so that the first token is scored too."""

    Config = CausalLMConfig
    likelihood = Likelihood(kind="exact", estimator="chain rule", samples=1)
    sees = "the tokens before"

    @classmethod
    def requires(cls, capabilities: Capabilities) -> str | None:
        return None if capabilities.causal else "a causal backbone: one that cannot see the token it predicts"

    def view(self, batch: Batch, generator: torch.Generator) -> View:
        return self.answer_view(batch)

    def answer_view(self, batch: Batch) -> View:
        begin_B1 = torch.full_like(batch.tokens_BT[:, :1], self.vocabulary.bos)
        scored_BT = batch.answer_BT & batch.valid_BT
        return View(
            tokens_BT=torch.cat([begin_B1, batch.context_BT[:, :-1]], dim=1),
            valid_BT=None,  # padding stands on the right, where a causal model does not look
            target_BT=batch.tokens_BT,
            weight_BT=scored_BT.float(),
            count_B=scored_BT.sum(1).float(),
        )

    def likelihood_score(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        view = self.answer_view(batch).to(next(model.parameters()).device)
        return Score(
            nats_B=self.nats(view.run(model), view).double().sum(1).cpu(),
            bytes_B=scored_bytes(batch, batch.answer_BT & batch.valid_BT),
        )

    @torch.no_grad()
    def sample(
        self,
        model: Backbone,
        prompt_BT: Tensor,
        length: int,
        generator: torch.Generator,
        temperature: float = 1.0,
    ) -> Tensor:
        begin_B1 = torch.full((prompt_BT.shape[0], 1), self.vocabulary.bos).to(prompt_BT)
        state = model.start(prompt_BT.shape[0], length + 1)
        unread_BT = torch.cat([begin_B1, prompt_BT], dim=1)
        symbols = self.vocabulary.num_symbols
        return write_on(model, state, prompt_BT, unread_BT, length, symbols, generator, temperature)
