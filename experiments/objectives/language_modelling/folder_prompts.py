"""Generation with the model of a Hugging Face folder: prompts are tokenized as in ``transformers``.

The folder's tokenizer, or its chat template, has added every special token; none is added here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from archbench.architectures.backbone import Backbone, Capabilities
from archbench.experiments.objectives.decoding.prefill import PrefillState, pad_right
from archbench.experiments.objectives.language_modelling.causal_lm import CausalLM
from archbench.experiments.objectives.objective import Objective, Score, View, scored_bytes
from archbench.experiments.objectives.source_target import cut_out, prefill_target
from archbench.experiments.tasks.metrics import Likelihood
from archbench.experiments.tasks.task import Batch


class FolderContinuation(CausalLM):
    """Continues complete prompts; a likelihood is given their first token."""

    complete_prompts = True

    @property
    def begin(self) -> tuple[int, ...]:
        return ()

    def prefill_state(
        self, model: Backbone, prompts: Sequence[Sequence[int]], max_tokens: int
    ) -> PrefillState:
        rows = [[*prompt] or [self.vocabulary.bos] for prompt in prompts]
        unread_BT, valid_BT = pad_right(rows, self.vocabulary.pad, next(model.parameters()).device)
        state = model.start(len(rows), unread_BT.shape[1] + max_tokens)
        return PrefillState(state=state, unread_BT=unread_BT, valid_BT=valid_BT)


class FolderAnswer(Objective):
    """Answers of an encoder-decoder: the encoder reads the complete prompt, the decoder writes."""

    likelihood = Likelihood(
        kind="conditional", estimator="chain rule on the target given the source", samples=1
    )
    complete_prompts = True
    continues = False

    @classmethod
    def missing_capability(cls, capabilities: Capabilities) -> str | None:
        return None if capabilities.encoder_decoder else "an encoder-decoder: one that reads a source"

    def view(self, batch: Batch, generator: torch.Generator) -> View:
        return self.answer_view(batch)

    def answer_view(self, batch: Batch) -> View:
        return cut_out(batch, batch.answer_BT, self.vocabulary, ends=False)

    def likelihood_score(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        return Score(
            nats_B=self.nats_on_host(model, self.answer_view(batch)).sum(1),
            bytes_B=scored_bytes(batch, batch.answer_BT & batch.valid_BT),
        )

    def prefill_state(
        self, model: Backbone, prompts: Sequence[Sequence[int]], max_tokens: int
    ) -> PrefillState:
        begun = [[self.vocabulary.decoder_start]] * len(prompts)
        sources = [[*prompt] or [self.vocabulary.eos] for prompt in prompts]
        return prefill_target(model, sources, begun, self.vocabulary, max_tokens)
