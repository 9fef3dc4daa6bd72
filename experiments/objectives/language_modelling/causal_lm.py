"""Causal language modelling: predict each token from those before it.

Shapes: B batch, T length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from archbench.architectures.backbone import Backbone, Capabilities
from archbench.experiments.objectives.decoding.prefill import PrefillState, pad_right
from archbench.experiments.objectives.objective import (
    Objective,
    Score,
    TokenScores,
    View,
    at_tokens,
    documents,
    scored_bytes,
)
from archbench.experiments.tasks.metrics import Likelihood
from archbench.experiments.tasks.task import Batch


@dataclass(frozen=True, kw_only=True)
class CausalLMConfig:
    """Causal language modelling."""

    separate_documents: bool = False
    """Documents that share a window do not see each other, and each begins at position 0."""
    every_token: bool = False
    """Training scores every token of an example, as MAD's code does in recall, and not only its answers;
    held-out scores are of the answers."""


class CausalLM(Objective):
    """Next-token prediction after a begin token, so that the first token is also scored.

    Where the tokenizer of a folder begins texts with no token, the first one is not scored.
    """

    Config = CausalLMConfig
    config: CausalLMConfig
    draws = False
    full_likelihood = True
    likelihood = Likelihood(kind="exact", estimator="chain rule", samples=1)

    @classmethod
    def missing_capability(cls, capabilities: Capabilities) -> str | None:
        return None if capabilities.causal else "a causal backbone: one that cannot see the token it predicts"

    def view(self, batch: Batch, generator: torch.Generator) -> View:
        return self._view(batch, batch.valid_BT if self.config.every_token else batch.answer_BT)

    def answer_view(self, batch: Batch) -> View:
        return self._view(batch, batch.answer_BT)

    def _view(self, batch: Batch, scored_BT: Tensor) -> View:
        view = next_token_view(batch, scored_BT & batch.valid_BT, self.begin)
        if not self.config.separate_documents:
            return view
        return replace(view, documents_BT=documents(view.tokens_BT, self.vocabulary))

    @property
    def begin(self) -> tuple[int, ...]:
        """The tokens that a model reads before a text."""
        return self.vocabulary.begin

    def likelihood_score(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        nats_BT = at_tokens(self.nats_on_host(model, self.answer_view(batch)), batch)
        scored_BT = batch.answer_BT & batch.valid_BT
        if not self.begin:
            scored_BT = F.pad(scored_BT[:, 1:], (1, 0))  # the first token has no context
        return Score(
            nats_B=nats_BT.sum(1),
            bytes_B=scored_bytes(batch, scored_BT),
            by_token=TokenScores.of(batch, nats_BT, scored_BT, scored_BT),
        )

    def prefill_state(
        self, model: Backbone, prompts: Sequence[Sequence[int]], max_tokens: int
    ) -> PrefillState:
        device = next(model.parameters()).device
        rows = [[*self.begin, *prompt] for prompt in prompts]
        unread_BT, valid_BT = pad_right(rows, self.vocabulary.pad, device)
        state = model.start(len(rows), unread_BT.shape[1] + max_tokens)
        return PrefillState(state=state, unread_BT=unread_BT, valid_BT=valid_BT)


def next_token_view(batch: Batch, scored_BT: Tensor, begin: Sequence[int]) -> View:
    """Return the view in which each token is predicted from those before it, the first from ``begin``.

    Without a begin token, as with the tokenizers of some folders, the first token of a window is not
    predicted, and the view is one position shorter.
    """
    tokens_BT, rows = batch.tokens_BT, len(batch.tokens_BT)
    begin_BJ = torch.tensor(begin, dtype=tokens_BT.dtype, device=tokens_BT.device).expand(rows, -1)
    scored_BT = torch.cat([torch.zeros_like(begin_BJ, dtype=torch.bool), scored_BT], dim=1)[:, 1:]
    return View(
        tokens_BT=torch.cat([begin_BJ, batch.context_BT], dim=1)[:, :-1],
        valid_BT=None,  # padding is on the right, which a causal model does not read
        target_BT=torch.cat([begin_BJ, tokens_BT], dim=1)[:, 1:],
        weight_BT=scored_BT.float(),
        count_B=scored_BT.sum(1).float(),
    )
