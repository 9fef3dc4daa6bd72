"""Span corruption: cut spans out of the text, let the decoder write them.

Raffel et al. 2020 (T5, arXiv 1910.10683), section 3.1.4, as published in its code:
15% of the tokens in spans of mean length 3; the text begins with a kept span.
Each span is replaced by a sentinel; the target is each sentinel followed by its
span, then the end token.

Shapes: B batch, T raw length, S source length, Y target length, K spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from architectures.backbone import Backbone, Capabilities
from experiments.errors import DataError
from experiments.objectives.objective import (
    Likelihood,
    Objective,
    Score,
    View,
    write_on,
)
from experiments.tasks.task import Batch


@dataclass(frozen=True, kw_only=True)
class SpanCorruptionConfig:
    """Span corruption."""

    density: float = 0.15
    """Share of the tokens cut out."""
    mean_span: float = 3.0
    """Mean length of a span, in tokens."""
    evaluation_samples: int = 4
    """Corrupted versions of each sequence that are scored."""

    def __post_init__(self) -> None:
        if not 0 < self.density < 1:
            raise ValueError(f"density={self.density} must lie between 0 and 1")
        if self.mean_span < 1 or self.evaluation_samples < 1:
            raise ValueError("mean_span and evaluation_samples must be at least 1")


def span_counts(length: int, density: float, mean_span: float) -> tuple[int, int]:
    """Tokens to cut out and spans to cut them in."""
    noise = min(max(round(length * density), 1), length - 1)
    spans = max(round(noise / mean_span), 1)
    return noise, min(spans, noise, length - noise)


def random_parts(total: int, parts: int, batch: int, generator: torch.Generator) -> Tensor:
    """``total`` cut into ``parts`` positive integers, each way equally likely; shape (B, parts)."""
    places = torch.rand(batch, total - 1, generator=generator).argsort(1)[:, : parts - 1] + 1
    ends = torch.cat([places.sort(1).values, torch.full((batch, 1), total)], dim=1)
    return ends.diff(dim=1, prepend=torch.zeros(batch, 1, dtype=ends.dtype))


def noise_mask(
    length: int, density: float, mean_span: float, batch: int, generator: torch.Generator
) -> Tensor:
    """True at the tokens to cut out, (B, T): kept and cut spans by turns, beginning with a kept one."""
    noise, spans = span_counts(length, density, mean_span)
    kept_BK = random_parts(length - noise, spans, batch, generator)
    cut_BK = random_parts(noise, spans, batch, generator)
    ends_BJ = torch.stack([kept_BK, cut_BK], dim=2).flatten(1).cumsum(1)
    position_T = torch.arange(length)
    return (torch.searchsorted(ends_BJ, position_T.expand(batch, -1).contiguous(), right=True) % 2).bool()


class SpanCorruption(Objective):
    """T5's objective. On tasks with answers, the answers are the spans and only they are scored."""

    Config = SpanCorruptionConfig
    config: SpanCorruptionConfig
    sees = "the text with spans cut out"

    @property
    def likelihood(self) -> Likelihood:  # type: ignore[override]
        c = self.config
        return Likelihood(
            kind="pseudo",
            estimator=f"spans given the rest ({c.density:.0%} cut, mean length {c.mean_span:g})",
            samples=c.evaluation_samples,
        )

    @classmethod
    def requires(cls, capabilities: Capabilities) -> str | None:
        if capabilities.encoder_decoder:
            return None
        return "an encoder-decoder: one that reads a source and writes a target"

    def _noise(self, batch: Batch, rows: int, generator: torch.Generator) -> Tensor:
        """The tokens to cut out of ``rows`` sequences of the batch's length."""
        if not batch.valid_BT.all():
            raise DataError("span corruption takes full windows: this task pads its sequences")
        length = batch.tokens_BT.shape[1]
        return noise_mask(length, self.config.density, self.config.mean_span, rows, generator)

    def view(self, batch: Batch, generator: torch.Generator) -> View:
        if not batch.whole:
            return self.answer_view(batch)
        return self._view(batch, self._noise(batch, len(batch.tokens_BT), generator), score_all=True)

    def answer_view(self, batch: Batch) -> View:
        return self._view(batch, batch.answer_BT & batch.valid_BT, score_all=False)

    def _view(self, batch: Batch, noise_BT: Tensor, *, score_all: bool) -> View:
        """``score_all`` scores sentinels and the end token too, as T5 does; otherwise the cut tokens only."""
        B = noise_BT.shape[0]
        starts_BT = noise_BT & ~torch.nn.functional.pad(noise_BT[:, :-1], (1, 0))
        spans = int(starts_BT.sum(1).max())
        if spans > self.vocabulary.num_sentinels:
            raise DataError(
                f"{spans} spans in one sequence, but the task's vocabulary has "
                f"{self.vocabulary.num_sentinels} sentinels: raise task.num_sentinels or lower "
                "objective.density"
            )
        sentinel_BT = self.vocabulary.size - starts_BT.cumsum(1)
        end_B1 = torch.full((B, 1), self.vocabulary.eos)

        source_BT = torch.where(starts_BT, sentinel_BT, batch.context_BT)
        source_BS = torch.cat([_keep(source_BT, ~noise_BT | starts_BT), end_B1], dim=1)

        def target(tokens_BT: Tensor) -> Tensor:
            pairs = torch.stack([sentinel_BT, tokens_BT], dim=2).flatten(1)
            return torch.cat([_keep(pairs, in_target), end_B1], dim=1)

        in_target = torch.stack([starts_BT, noise_BT], dim=2).flatten(1)
        target_BY = target(batch.tokens_BT)
        shown_BY = target(batch.context_BT)
        begin_B1 = torch.full((B, 1), self.vocabulary.pad)  # T5 starts its decoder with the padding token
        scored_BY = torch.ones_like(target_BY, dtype=torch.bool)
        if not score_all:
            scored_BY = (target_BY < self.vocabulary.size - self.vocabulary.num_sentinels) & (
                torch.arange(target_BY.shape[1]) < target_BY.shape[1] - 1
            )
        return View(
            tokens_BT=torch.cat([begin_B1, shown_BY[:, :-1]], dim=1),
            valid_BT=None,
            target_BT=target_BY,
            weight_BT=scored_BY.float(),
            count_B=scored_BY.sum(1).float(),
            source_BS=source_BS,
            source_valid_BS=None,
        )

    def likelihood_score(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        """Nats and bytes of the cut tokens; sentinels and the end token, nearly free, are left out."""
        assert batch.bytes_BT is not None
        device = next(model.parameters()).device
        nats_B = torch.zeros(batch.tokens_BT.shape[0], dtype=torch.float64)
        bytes_B = torch.zeros_like(nats_B)
        for _ in range(self.config.evaluation_samples):
            noise_BT = torch.cat([self._noise(batch, 1, generator) for generator in generators])
            view = self._view(batch, noise_BT, score_all=False).to(device)
            nats_B += self.nats(view.run(model), view).double().sum(1).cpu()
            bytes_B += (batch.bytes_BT * noise_BT).sum(1)
        return Score(nats_B=nats_B, bytes_B=bytes_B)

    @torch.no_grad()
    def sample(
        self,
        model: Backbone,
        prompt_BT: Tensor,
        length: int,
        generator: torch.Generator,
        temperature: float = 1.0,
    ) -> Tensor:
        """The prompt with one span cut out at its end, which the decoder writes."""
        B = prompt_BT.shape[0]
        sentinel_B1 = torch.full((B, 1), self.vocabulary.sentinel(0)).to(prompt_BT)
        end_B1 = torch.full_like(sentinel_B1, self.vocabulary.eos)
        begin_B1 = torch.full_like(sentinel_B1, self.vocabulary.pad)
        source_BS = torch.cat([prompt_BT, sentinel_B1, end_B1], dim=1)
        state = model.start(B, length + 2, source_BS=source_BS)
        unread_BT = torch.cat([begin_B1, sentinel_B1], dim=1)
        symbols = self.vocabulary.num_symbols
        return write_on(model, state, prompt_BT, unread_BT, length, symbols, generator, temperature)


def _keep(x_BJ: Tensor, keep_BJ: Tensor) -> Tensor:
    """The kept entries of each row, in order; all rows must keep equally many."""
    counts = keep_BJ.sum(1)
    if not (counts == counts[0]).all():
        raise DataError("span corruption needs equally many answers in every example of a batch")
    return x_BJ[keep_BJ].view(x_BJ.shape[0], -1)
