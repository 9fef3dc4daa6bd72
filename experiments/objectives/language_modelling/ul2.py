"""UL2: a mixture of denoisers, each announced by a mode token.

Tay et al. 2023 (arXiv 2205.05131), table 1: R denoisers cut short spans out of a small fraction of the
text, X denoisers cut long spans or a large fraction, the S denoiser cuts off the last quarter. The first
token of the source is the mode.

Shapes: B batch, T raw length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from archbench.architectures.backbone import Backbone, Capabilities
from archbench.experiments.objectives.decoding.prefill import PrefillState
from archbench.experiments.objectives.language_modelling.prefix_lm import PrefixLM, PrefixLMConfig
from archbench.experiments.objectives.language_modelling.span_corruption import noise_mask, span_counts
from archbench.experiments.objectives.objective import Objective, View
from archbench.experiments.objectives.source_target import cut_out, prefill_target
from archbench.experiments.runtime.errors import ConfigError, DataError
from archbench.experiments.tasks.task import Batch, Task


class Denoiser(NamedTuple):
    """A type of corruption."""

    mode: str
    """``R``, ``S`` or ``X``."""
    mean_span: float
    """Mean length of a span; of no meaning to S, which cuts one."""
    density: float
    """Share of the tokens cut out."""


DENOISERS = (
    Denoiser("R", 3, 0.15),
    Denoiser("R", 8, 0.15),
    Denoiser("S", 0, 0.25),
    Denoiser("X", 3, 0.5),
    Denoiser("X", 8, 0.5),
    Denoiser("X", 64, 0.15),
    Denoiser("X", 64, 0.5),
)
"""The seven of table 1."""

MODES = "RSX"
"""Mode tokens are the last sentinels (the lowest ids), in this order from the lowest."""


@dataclass(frozen=True, kw_only=True)
class UL2Config(PrefixLMConfig):
    """The mixture of UL2."""

    mixture_weights: list[float] = field(default_factory=lambda: [1.0] * 7)
    """How often each denoiser is drawn, as weights: R 3/15%, R 8/15%, S, X 3/50%, X 8/50%, X 64/15%,
    X 64/50% (mean span, share cut out)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            len(self.mixture_weights) != len(DENOISERS)
            or min(self.mixture_weights) < 0
            or sum(self.mixture_weights) == 0
        ):
            raise ValueError(
                f"mixture_weights={self.mixture_weights} must be {len(DENOISERS)} numbers, "
                "none negative, not all 0"
            )


class UL2(PrefixLM):
    """UL2's objective. Evaluation, and tasks with answers, use a prefix LM in mode S.

    The likelihood is that of ``PrefixLM``: the same texts, cut at the same positions.
    """

    Config = UL2Config
    config: UL2Config

    def __init__(self, config: UL2Config, task: Task) -> None:
        super().__init__(config, task)
        self.num_marks = self.vocabulary.num_sentinels - len(MODES)
        drawn = [d for d, rate in zip(DENOISERS, config.mixture_weights, strict=True) if rate > 0]
        spans = [span_counts(task.sequence_length, d.density, d.mean_span)[1] for d in drawn if d.mode != "S"]
        if max(spans, default=0) > self.num_marks:
            raise ConfigError(
                f"objective=ul2 cuts up to {max(spans)} spans out of {task.sequence_length} tokens and needs "
                f"{max(spans) + len(MODES)} sentinels with its mode tokens; the vocabulary has "
                f"{self.vocabulary.num_sentinels}: raise task.num_sentinels, or set the "
                "mixture_weights of the "
                "denoisers with short spans to 0"
            )

    @classmethod
    def missing_capability(cls, capabilities: Capabilities) -> str | None:
        if capabilities.encoder_decoder:
            return None
        return "an encoder-decoder: one that reads a source and writes a target"

    @classmethod
    def for_backbone(cls, capabilities: Capabilities) -> type[Objective]:
        return cls

    @property
    def longest(self) -> int:
        return self.task.sequence_length + 2

    def mode(self, name: str) -> int:
        """The mode token of ``R``, ``S`` or ``X``."""
        return self.vocabulary.sentinel(self.vocabulary.num_sentinels - 1 - MODES.index(name))

    def view(self, batch: Batch, generator: torch.Generator) -> View:
        if not batch.whole:
            return self.answer_view(batch)
        if not batch.valid_BT.all():
            raise DataError("UL2 needs full windows: this task pads its sequences")
        rates = torch.tensor(self.config.mixture_weights)
        cut, drawn = [], []
        for _ in range(len(batch.tokens_BT)):
            denoiser = DENOISERS[int(torch.multinomial(rates, 1, generator=generator))]
            cut.append(cut_mask(batch.tokens_BT.shape[1], denoiser, generator))
            drawn.append(denoiser.mode)
        return cut_out(
            batch,
            torch.stack(cut),
            self.vocabulary,
            marked_B=torch.tensor([mode != "S" for mode in drawn]),
            modes_B=torch.tensor([self.mode(mode) for mode in drawn]),
            score_all=True,
            num_marks=self.num_marks,
        )

    def _view(self, batch: Batch, suffix_BT: Tensor) -> View:
        modes_B = torch.full((len(suffix_BT),), self.mode("S"))
        return cut_out(batch, suffix_BT, self.vocabulary, modes_B=modes_B)

    def prefill_state(
        self, model: Backbone, prompts: Sequence[Sequence[int]], max_tokens: int
    ) -> PrefillState:
        v = self.vocabulary
        sources = [[self.mode("S"), *prompt, v.eos] for prompt in prompts]
        return prefill_target(model, sources, [[v.decoder_start]] * len(prompts), v, max_tokens)


def cut_mask(length: int, denoiser: Denoiser, generator: torch.Generator) -> Tensor:
    """True (T,) at the tokens that a denoiser cuts out."""
    if denoiser.mode == "S":
        return torch.arange(length) >= length - max(1, round(length * denoiser.density))
    return noise_mask(length, denoiser.density, denoiser.mean_span, 1, generator)[0]
