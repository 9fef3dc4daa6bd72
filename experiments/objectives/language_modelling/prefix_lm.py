"""Prefix LM: read the beginning of a text, write the rest.

Raffel et al. 2020 (T5, arXiv 1910.10683), section 3.2.1: the place where the text is cut is drawn
uniformly, and only what follows it is scored. An encoder-decoder reads the prefix with its encoder;
a causal backbone reads it token by token. Both are asked the same question, so they may be compared.

Shapes: B batch, T length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from architectures.backbone import Backbone, Capabilities
from experiments.objectives.decoding.sampling import PrefillState
from experiments.objectives.language_modelling.causal_lm import CausalLM, CausalLMConfig
from experiments.objectives.objective import Objective, Score, View, row_noise, scored_bytes
from experiments.objectives.source_target import cut_out, prefill_target
from experiments.runtime.errors import DataError
from experiments.tasks.likelihood import Likelihood
from experiments.tasks.task import Batch


@dataclass(frozen=True, kw_only=True)
class PrefixLMConfig:
    """Prefix language modelling."""

    evaluation_samples: int = 4
    """Places at which each sequence is cut to be scored."""

    def __post_init__(self) -> None:
        if self.evaluation_samples < 1:
            raise ValueError(f"evaluation_samples={self.evaluation_samples} must be at least 1")


def suffix_mask(valid_BT: Tensor, noise_B: Tensor) -> Tensor:
    """True (B, T) from a place on, uniform in ``1 .. length - 1`` where ``noise_B`` is uniform in [0, 1)."""
    place_B = 1 + (noise_B * (valid_BT.sum(1) - 1)).long()
    return (torch.arange(valid_BT.shape[1]) >= place_B[:, None]) & valid_BT


class PrefixLM(Objective):
    """Prefix LM of encoder-decoders: the prefix is the source, the rest the target.

    No end token is appended: a window ends anywhere, so there would be nothing to learn. On tasks with
    answers, what stands before the first answer is the prefix.
    """

    Config = PrefixLMConfig
    config: PrefixLMConfig

    @property
    def likelihood(self) -> Likelihood:  # type: ignore[override]
        return Likelihood(
            kind="conditional",
            estimator="chain rule on the rest of the text given its beginning, cut at uniform places",
            samples=self.config.evaluation_samples,
        )

    @classmethod
    def missing_capability(cls, capabilities: Capabilities) -> str | None:
        if capabilities.encoder_decoder or capabilities.causal:
            return None
        return "an encoder-decoder or a causal backbone: one that writes from left to right"

    @classmethod
    def for_backbone(cls, capabilities: Capabilities) -> type[Objective]:
        return cls if capabilities.encoder_decoder else CausalPrefixLM

    def view(self, batch: Batch, generator: torch.Generator) -> View:
        if not batch.whole:
            return self.answer_view(batch)
        noise_B = torch.rand(len(batch.tokens_BT), generator=generator)
        return self._view(batch, suffix_mask(batch.valid_BT, noise_B))

    def answer_view(self, batch: Batch) -> View:
        return self._view(batch, (batch.answer_BT & batch.valid_BT).cumsum(1) > 0)

    def _view(self, batch: Batch, suffix_BT: Tensor) -> View:
        return cut_out(batch, suffix_BT, self.vocabulary, ends=False)

    def likelihood_score(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        """Nats and bytes of what follows the cuts."""
        device = next(model.parameters()).device
        nats_B = torch.zeros(len(batch.tokens_BT), dtype=torch.float64)
        bytes_B = torch.zeros_like(nats_B)
        for _ in range(self.config.evaluation_samples):
            suffix_BT = suffix_mask(batch.valid_BT, row_noise(generators, 1)[:, 0])
            view = self._view(batch, suffix_BT).to(device)
            nats_B += self.nats(view.run(model), view).double().sum(1).cpu()
            bytes_B += scored_bytes(batch, suffix_BT)
        return Score(nats_B=nats_B, bytes_B=bytes_B)

    def prefill_state(
        self, model: Backbone, prompts: Sequence[Sequence[int]], max_tokens: int
    ) -> PrefillState:
        if not all(prompts):
            raise DataError("a prefix LM continues a prompt, and this one is empty: give a token or more")
        begun = [[self.vocabulary.pad]] * len(prompts)
        return prefill_target(model, prompts, begun, self.vocabulary, max_tokens)


class CausalPrefixLM(PrefixLM):
    """Prefix LM of causal backbones: the whole text is read in order, and what follows the cut is scored."""

    def _view(self, batch: Batch, suffix_BT: Tensor) -> View:
        begin_B1 = torch.full_like(batch.tokens_BT[:, :1], self.vocabulary.bos)
        scored_BT = suffix_BT & batch.answer_BT & batch.valid_BT
        return View(
            tokens_BT=torch.cat([begin_B1, batch.context_BT[:, :-1]], dim=1),
            valid_BT=None,  # padding stands on the right, where a causal model does not look
            target_BT=batch.tokens_BT,
            weight_BT=scored_BT.float(),
            count_B=scored_BT.sum(1).float(),
        )

    def prefill_state(
        self, model: Backbone, prompts: Sequence[Sequence[int]], max_tokens: int
    ) -> PrefillState:
        return CausalLM(CausalLMConfig(), self.task).prefill_state(model, prompts, max_tokens)
