"""Span corruption: cut spans out of the text, let the decoder generate them.

Raffel et al. 2020 (T5, arXiv 1910.10683), sections 3.1.4 and 3.3.4, as published in its code:
15% of the tokens in spans of mean length 3; the text begins with an uncorrupted span.
Each span is replaced by a sentinel; the target is each sentinel followed by its
span, then the end token.

Shapes: B batch, T raw length, S source length, Y target length, K spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from archbench.architectures.backbone import Backbone, Capabilities
from archbench.experiments.objectives.decoding.prefill import PrefillState, pad_right
from archbench.experiments.objectives.objective import (
    Objective,
    Score,
    TokenScores,
    View,
    in_text_order,
    scored_bytes,
)
from archbench.experiments.objectives.source_target import cut_out
from archbench.experiments.runtime.errors import ConfigError, DataError
from archbench.experiments.tasks.metrics import Likelihood
from archbench.experiments.tasks.task import Batch, Task


@dataclass(frozen=True, kw_only=True)
class SpanCorruptionConfig:
    """Span corruption."""

    noise_density: float = 0.15
    """Share of the tokens cut out."""
    mean_noise_span_length: float = 3.0
    """Mean length of a span, in tokens."""
    source_length: int | None = None
    """Length of the encoder's input, such as 512; a window that would not fill it exactly is rejected, and
    the message names the right one (568). Null for the length that results from the task's window."""
    evaluation_samples: int = 1
    """Corrupted versions of each sequence that are scored."""

    def __post_init__(self) -> None:
        if not 0 < self.noise_density < 1:
            raise ValueError(f"noise_density={self.noise_density} must be between 0 and 1")
        if self.mean_noise_span_length < 1 or self.evaluation_samples < 1:
            raise ValueError(
                f"mean_noise_span_length={self.mean_noise_span_length} and "
                f"evaluation_samples={self.evaluation_samples} "
                "must be at least 1"
            )
        if self.source_length is not None and self.source_length < 3:
            raise ValueError(
                f"source_length={self.source_length} must be 3 or more (a token, a sentinel, the end), "
                "or null"
            )


def span_counts(length: int, density: float, mean_span: float) -> tuple[int, int]:
    """Tokens to cut out and spans to cut them in."""
    noise = min(max(round(length * density), 1), length - 1)
    spans = max(round(noise / mean_span), 1)
    return noise, min(spans, noise, length - noise)


def split_lengths(length: int, density: float, mean_span: float) -> tuple[int, int]:
    """Lengths of source and target of ``length`` tokens, each with its sentinels and its end token."""
    noise, spans = span_counts(length, density, mean_span)
    return length - noise + spans + 1, noise + spans + 1


def full_window(source_length: int, density: float, mean_span: float) -> tuple[int, int]:
    """The longest window with a source of at most ``source_length`` tokens, and the length of its target.

    As T5's ``random_spans_helper``, with its exception: at density 0.5 a target one token longer than
    the source is avoided by a window one shorter.
    """
    length = 2
    while split_lengths(length + 1, density, mean_span)[0] <= source_length:
        length += 1
    target = split_lengths(length, density, mean_span)[1]
    if density == 0.5 and target > source_length:
        return length - 1, target - 1
    return length, target


def random_parts(total: int, parts: int, batch: int, generator: torch.Generator) -> Tensor:
    """``total`` cut into ``parts`` positive integers, each way equally likely; shape (B, parts)."""
    places = torch.rand(batch, total - 1, generator=generator).argsort(1)[:, : parts - 1] + 1
    ends = torch.cat([places.sort(1).values, torch.full((batch, 1), total)], dim=1)
    return ends.diff(dim=1, prepend=torch.zeros(batch, 1, dtype=ends.dtype))


def noise_mask(
    length: int, density: float, mean_span: float, batch: int, generator: torch.Generator
) -> Tensor:
    """True at the tokens to cut out, (B, T); spans alternate, and the first one is not cut."""
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

    def __init__(self, config: SpanCorruptionConfig, task: Task) -> None:
        super().__init__(config, task)
        if config.source_length is not None:
            window, target = full_window(
                config.source_length, config.noise_density, config.mean_noise_span_length
            )
            if window != task.sequence_length:
                raise ConfigError(
                    f"objective.source_length={config.source_length} is filled by a window of {window} "
                    f"tokens (target {target}), not {task.sequence_length}: set task.sequence_length={window}"
                )

    @property
    def likelihood(self) -> Likelihood:  # type: ignore[override]
        c = self.config
        return Likelihood(
            kind="pseudo",
            estimator=(
                f"spans given the rest ({c.noise_density:.0%} cut, mean length {c.mean_noise_span_length:g})"
            ),
            samples=c.evaluation_samples,
        )

    @classmethod
    def missing_capability(cls, capabilities: Capabilities) -> str | None:
        if capabilities.encoder_decoder:
            return None
        return "an encoder-decoder: one that reads a source and writes a target"

    @property
    def longest(self) -> int:
        return self.task.sequence_length + 1  # with the end token, if every second token is a span

    def _noise(self, batch: Batch, rows: int, generator: torch.Generator) -> Tensor:
        """The tokens to cut out of ``rows`` sequences of the batch's length."""
        if not batch.valid_BT.all():
            raise DataError("span corruption needs full windows: this task pads its sequences")
        length = batch.tokens_BT.shape[1]
        return noise_mask(
            length, self.config.noise_density, self.config.mean_noise_span_length, rows, generator
        )

    def view(self, batch: Batch, generator: torch.Generator) -> View:
        if not batch.whole:
            return self.answer_view(batch)
        return self._view(batch, self._noise(batch, len(batch.tokens_BT), generator), score_all=True)

    def answer_view(self, batch: Batch) -> View:
        return self._view(batch, batch.answer_BT, score_all=False)

    def _view(self, batch: Batch, noise_BT: Tensor, *, score_all: bool) -> View:
        """``score_all`` also scores sentinels and the end token, as T5 does; otherwise only cut tokens."""
        every_row_B = torch.ones(len(noise_BT), dtype=torch.bool)
        return cut_out(batch, noise_BT, self.vocabulary, marked_B=every_row_B, score_all=score_all)

    def likelihood_score(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        """Nats and bytes of the cut tokens that are to be scored; sentinels and the end are left out."""
        nats_B = torch.zeros(batch.tokens_BT.shape[0], dtype=torch.float64)
        bytes_B = torch.zeros_like(nats_B)
        nats_BT, counted_BT = (torch.zeros(batch.tokens_BT.shape, dtype=torch.float64) for _ in range(2))
        for _ in range(self.config.evaluation_samples):
            noise_BT = torch.cat([self._noise(batch, 1, generator) for generator in generators])
            view = self._view(batch, noise_BT, score_all=False)
            found_BY = self.nats_on_host(model, view)
            cut_BT = noise_BT & batch.answer_BT
            nats_B += found_BY.sum(1)
            bytes_B += scored_bytes(batch, cut_BT)
            nats_BT += in_text_order(found_BY, view, cut_BT)
            counted_BT += cut_BT
        by_token = TokenScores.of(batch, nats_BT, counted_BT, counted_BT)
        return Score(nats_B=nats_B, bytes_B=bytes_B, by_token=by_token)

    def prefill_state(
        self, model: Backbone, prompts: Sequence[Sequence[int]], max_tokens: int
    ) -> PrefillState:
        """The prompt with one span cut out at its end, which the decoder writes."""
        device = next(model.parameters()).device
        sentinel, pad = self.vocabulary.sentinel(0), self.vocabulary.pad
        sources = [[*prompt, sentinel, self.vocabulary.eos] for prompt in prompts]
        source_BS, source_valid_BS = pad_right(sources, pad, device)
        state = model.start(
            len(prompts), max_tokens + 2, source_BS=source_BS, source_valid_BS=source_valid_BS
        )
        begun = [self.vocabulary.decoder_start, sentinel]
        unread_BT = torch.tensor([begun] * len(prompts), device=device)
        return PrefillState(state=state, unread_BT=unread_BT)
