"""Denoising: the encoder reads a corrupted text, the decoder generates the full text.

Lewis et al. 2020 (BART, arXiv 1910.13461), section 2.2: text infilling replaces spans, with lengths
from a Poisson distribution, by one mask token each; a span of length 0 inserts a mask.
Sentence permutation shuffles the parts of the text first.

Shapes: B batch, T raw length, K spans, M items of a source (uncorrupted tokens and masks).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from archbench.architectures.backbone import Backbone, Capabilities
from archbench.experiments.objectives.decoding.prefill import PrefillState
from archbench.experiments.objectives.objective import (
    Objective,
    Score,
    TokenScores,
    View,
    in_text_order,
    scored_bytes,
)
from archbench.experiments.objectives.source_target import keep, prefill_target, source_target_view
from archbench.experiments.tasks.metrics import Likelihood
from archbench.experiments.tasks.task import Batch


@dataclass(frozen=True, kw_only=True)
class DenoisingConfig:
    """Denoising as in BART."""

    mask_probability: float = 0.3
    """Share of the tokens that are masked."""
    poisson_lambda: float = 3.0
    """Mean of the Poisson distribution of span lengths."""
    pieces: int = 1
    """Number of parts into which the text is cut, at random positions, and which are shuffled before masking.
    BART shuffles sentences, which tokens do not mark. 1 disables shuffling."""
    evaluation_samples: int = 1
    """Corrupted versions of each sequence that are scored."""

    def __post_init__(self) -> None:
        if not 0 < self.mask_probability < 1:
            raise ValueError(f"mask_probability={self.mask_probability} must be between 0 and 1")
        if self.poisson_lambda < 1:
            raise ValueError(f"poisson_lambda={self.poisson_lambda} must be at least 1")
        if self.pieces < 1 or self.evaluation_samples < 1:
            raise ValueError(
                f"pieces={self.pieces} and evaluation_samples={self.evaluation_samples} must be at least 1"
            )


def span_lengths(total: int, mean_span: float, generator: torch.Generator) -> Tensor:
    """Poisson lengths (K,) that add up to ``total``: the last is trimmed, as in the published code.

    Lengths of 0 are dropped until there are no more spans than tokens: a source is then
    never longer than its text. That happens to texts of a few tokens only.
    """
    drawn = torch.empty(0, dtype=torch.long)
    while drawn.sum() < total:
        more = torch.poisson(torch.full((total,), mean_span), generator=generator).long()
        drawn = torch.cat([drawn, more])
    last_index = int((drawn.cumsum(0) >= total).int().argmax())
    drawn = drawn[: last_index + 1]
    drawn[last_index] -= drawn.sum() - total
    surplus = max(len(drawn) - total, 0)
    empty = drawn == 0
    return drawn[~(empty & (empty.cumsum(0) <= surplus))]


def infill(length: int, rate: float, mean_span: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the position in the text (M,) where each item of the source begins, and True (M,) at masks.

    ``round(rate * length)`` tokens are masked, at least one. Spans do not overlap; every order of unmasked
    tokens and spans is equally likely.
    """
    masked = min(max(round(rate * length), 1), length)
    span_K = span_lengths(masked, mean_span, generator)
    items = length - masked + len(span_K)
    mask_M = torch.randperm(items, generator=generator) < len(span_K)
    advance_M = torch.ones(items, dtype=torch.long)
    advance_M[mask_M] = span_K[torch.randperm(len(span_K), generator=generator)]
    return advance_M.cumsum(0) - advance_M, mask_M


def shuffled(length: int, pieces: int, generator: torch.Generator) -> Tensor:
    """Positions (T,) of a text with shuffled pieces; every way to cut it is equally likely."""
    pieces = min(pieces, length)
    cuts = torch.randperm(length - 1, generator=generator)[: pieces - 1].sort().values + 1
    parts = torch.arange(length).tensor_split(cuts.tolist())
    return torch.cat([parts[i] for i in torch.randperm(pieces, generator=generator).tolist()])


class Denoising(Objective):
    """BART's objective. On tasks with answers, the answers are masked and only they are scored."""

    Config = DenoisingConfig
    config: DenoisingConfig

    @property
    def likelihood(self) -> Likelihood:  # type: ignore[override]
        return Likelihood(
            kind="pseudo",
            estimator=(
                f"the text given itself with {self.config.mask_probability:.0%} masked, per masked byte"
            ),
            samples=self.config.evaluation_samples,
        )

    @classmethod
    def missing_capability(cls, capabilities: Capabilities) -> str | None:
        if capabilities.encoder_decoder:
            return None
        return "an encoder-decoder: one that reads a source and writes a target"

    @property
    def longest(self) -> int:
        return self.task.sequence_length + 1

    def view(self, batch: Batch, generator: torch.Generator) -> View:
        if not batch.whole:
            return self.answer_view(batch)
        return self._corrupted(batch, [generator] * len(batch.tokens_BT), score_end=True)[0]

    def answer_view(self, batch: Batch) -> View:
        masked_BT = batch.answer_BT & batch.valid_BT
        starts_BT = masked_BT & ~F.pad(masked_BT[:, :-1], (1, 0))
        source_BT = torch.where(starts_BT, self.vocabulary.mask, batch.context_BT)
        kept_BT = (batch.valid_BT & ~masked_BT) | starts_BT
        return self._view(batch, source_BT, kept_BT, masked_BT, score_end=False)

    def _corrupted(
        self, batch: Batch, generators: Sequence[torch.Generator], *, score_end: bool
    ) -> tuple[View, Tensor]:
        """A view, and True (B, T) at the scored tokens it hides; each row has a separate generator."""
        c, lengths = self.config, batch.valid_BT.sum(1).tolist()
        sources, hidden_BT = [], batch.valid_BT.clone()
        for row, (length, generator) in enumerate(zip(lengths, generators, strict=True)):
            order_T = shuffled(length, c.pieces, generator)
            begin_M, mask_M = infill(length, c.mask_probability, c.poisson_lambda, generator)
            place_M = order_T[begin_M.clamp_max(length - 1)]  # a mask may follow the last token
            sources.append(batch.tokens_BT[row, place_M].masked_fill(mask_M, self.vocabulary.mask))
            hidden_BT[row, place_M[~mask_M]] = False
        source_BM = torch.nn.utils.rnn.pad_sequence(sources, batch_first=True)
        lengths_B1 = torch.tensor([[len(source)] for source in sources])
        kept_BM = torch.arange(source_BM.shape[1]) < lengths_B1
        scored_BT = batch.answer_BT & batch.valid_BT
        return self._view(batch, source_BM, kept_BM, scored_BT, score_end=score_end), hidden_BT & scored_BT

    def _view(
        self, batch: Batch, source_BM: Tensor, kept_BM: Tensor, scored_BT: Tensor, *, score_end: bool
    ) -> View:
        """The corrupted source and the full text as target, both with an end token."""
        eos, pad = self.vocabulary.eos, self.vocabulary.pad
        in_source_BM, in_target_BT = (F.pad(x, (0, 1), value=True) for x in (kept_BM, batch.valid_BT))
        return source_target_view(
            source_BS=keep(F.pad(source_BM, (0, 1), value=eos), in_source_BM, pad),
            source_lengths_B=in_source_BM.sum(1),
            shown_BY=keep(F.pad(batch.context_BT, (0, 1), value=eos), in_target_BT, pad),
            target_BY=keep(F.pad(batch.tokens_BT, (0, 1), value=eos), in_target_BT, pad),
            target_lengths_B=in_target_BT.sum(1),
            scored_BY=keep(F.pad(scored_BT, (0, 1), value=score_end), in_target_BT, False),
            begin=eos,  # as in BART
        )

    def likelihood_score(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        """Nats to restore what is scored of the text, and the bytes of it that were masked.

        The unmasked tokens, nearly free, count for the nats and not for the bytes, so the ratio is
        the cost of restoring a masked byte.
        """
        nats_B = torch.zeros(len(batch.tokens_BT), dtype=torch.float64)
        bytes_B = torch.zeros_like(nats_B)
        scored_BT = batch.answer_BT & batch.valid_BT
        nats_BT, counted_BT = (torch.zeros(scored_BT.shape, dtype=torch.float64) for _ in range(2))
        for _ in range(self.config.evaluation_samples):
            view, hidden_BT = self._corrupted(batch, generators, score_end=False)
            found_BY = self.nats_on_host(model, view)
            nats_B += found_BY.sum(1)
            bytes_B += scored_bytes(batch, hidden_BT)
            nats_BT += in_text_order(found_BY, view, scored_BT)
            counted_BT += hidden_BT
        by_token = TokenScores.of(batch, nats_BT, counted_BT, counted_BT)
        return Score(nats_B=nats_B, bytes_B=bytes_B, by_token=by_token)

    def prefill_state(
        self, model: Backbone, prompts: Sequence[Sequence[int]], max_tokens: int
    ) -> PrefillState:
        """The prompt with a mask at its end, which the decoder writes after the prompt itself."""
        v = self.vocabulary
        sources = [[*prompt, v.mask, v.eos] for prompt in prompts]
        return prefill_target(model, sources, [[v.eos, *prompt] for prompt in prompts], v, max_tokens)
