"""Prefix LM: read the beginning of a text, generate the rest.

Raffel et al. 2020 (T5, arXiv 1910.10683), section 3.2.1: the position where the text is cut is drawn
uniformly, and only what follows it is scored. An encoder-decoder reads the prefix with its encoder;
a causal backbone reads it token by token. Both score the same tokens, so they may be compared.

Shapes: B batch, T length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from archbench.architectures.backbone import Backbone, Capabilities
from archbench.experiments.objectives.decoding.prefill import PrefillState
from archbench.experiments.objectives.language_modelling.causal_lm import (
    CausalLM,
    CausalLMConfig,
    next_token_view,
)
from archbench.experiments.objectives.objective import (
    Objective,
    Score,
    TokenScores,
    View,
    in_text_order,
    row_noise,
    scored_bytes,
)
from archbench.experiments.objectives.source_target import cut_out, prefill_target
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.tasks.metrics import Likelihood
from archbench.experiments.tasks.task import Batch


@dataclass(frozen=True, kw_only=True)
class PrefixLMConfig:
    """Prefix language modelling."""

    evaluation_samples: int = 4
    """Random cuts of each window that has no context: the first window of a text, or every window
    of windows without overlap (task.stride=null)."""

    def __post_init__(self) -> None:
        if self.evaluation_samples < 1:
            raise ValueError(f"evaluation_samples={self.evaluation_samples} must be at least 1")


def suffix_mask(valid_BT: Tensor, noise_B: Tensor) -> Tensor:
    """True (B, T) from a place on, uniform in ``1 .. length - 1`` where ``noise_B`` is uniform in [0, 1)."""
    place_B = 1 + (noise_B * (valid_BT.sum(1) - 1)).long()
    return (torch.arange(valid_BT.shape[1]) >= place_B[:, None]) & valid_BT


class PrefixLM(Objective):
    """Prefix LM of encoder-decoders: the prefix is the source, the rest the target.

    No end token is appended, because a window may end anywhere. The prefix is everything before the first
    scored token: the context of a window of text, or the question before an
    answer.
    """

    Config = PrefixLMConfig
    config: PrefixLMConfig

    @property
    def likelihood(self) -> Likelihood:  # type: ignore[override]
        if self.task.stride is not None and self.task.stride < self.task.sequence_length:
            cut, samples = "the context of its window", 1
        else:
            cut, samples = "its beginning, cut at uniform places", self.config.evaluation_samples
        return Likelihood(
            kind="conditional", estimator=f"chain rule on the rest of the text given {cut}", samples=samples
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
        """Nats and bytes of the scored tokens, given the tokens before them.

        Without such context, the window is cut at random places: means over ``evaluation_samples``.
        """
        nats_B = torch.zeros(len(batch.tokens_BT), dtype=torch.float64)
        bytes_B = torch.zeros_like(nats_B)
        scored_BT = batch.answer_BT & batch.valid_BT
        nats_BT, counted_BT = (torch.zeros(scored_BT.shape, dtype=torch.float64) for _ in range(2))
        cut_B1 = scored_BT[:, :1]
        samples = self.config.evaluation_samples if cut_B1.any() else 1
        once_B1 = torch.ones_like(cut_B1)
        for _ in range(samples):
            drawn_BT = suffix_mask(batch.valid_BT, row_noise(generators, once_B1)[:, 0])
            suffix_BT = torch.where(cut_B1, drawn_BT, scored_BT)
            view = self._view(batch, suffix_BT)
            found_BY = self.nats_on_host(model, view)
            nats_B += found_BY.sum(1) / samples
            bytes_B += scored_bytes(batch, suffix_BT) / samples
            nats_BT += in_text_order(found_BY, view, suffix_BT & scored_BT) / samples
            counted_BT += suffix_BT / samples
        by_token = TokenScores.of(batch, nats_BT, counted_BT, counted_BT)
        return Score(nats_B=nats_B, bytes_B=bytes_B, by_token=by_token)

    def prefill_state(
        self, model: Backbone, prompts: Sequence[Sequence[int]], max_tokens: int
    ) -> PrefillState:
        if not all(prompts):
            raise DataError("a prefix LM continues a prompt, and this one is empty: give a token or more")
        begun = [[self.vocabulary.decoder_start]] * len(prompts)
        return prefill_target(model, prompts, begun, self.vocabulary, max_tokens)


class CausalPrefixLM(PrefixLM):
    """Prefix LM of causal backbones: the full text is read in order, and tokens after the cut are scored."""

    def _view(self, batch: Batch, suffix_BT: Tensor) -> View:
        return next_token_view(batch, suffix_BT & batch.answer_BT & batch.valid_BT, self.vocabulary.begin)

    def prefill_state(
        self, model: Backbone, prompts: Sequence[Sequence[int]], max_tokens: int
    ) -> PrefillState:
        return CausalLM(CausalLMConfig(), self.task).prefill_state(model, prompts, max_tokens)
