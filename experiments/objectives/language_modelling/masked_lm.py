"""Masked language modelling: hide some tokens, predict them from the rest.

Devlin et al. 2019 (arXiv 1810.04805), section 3.1: a share of the tokens is chosen;
of these 80% become the mask token, 10% a random token, 10% stay. Special tokens
(the end of a document, what frames a pair of texts, padding) are neither chosen
nor drawn, and the pseudo-likelihood leaves them out.

Shapes: B batch, T length, N sequences of a split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archbench.architectures.backbone import Backbone, Capabilities
from archbench.experiments.objectives.diffusion.unmasking_sampler import UnmaskingObjective
from archbench.experiments.objectives.objective import (
    Score,
    TokenScores,
    View,
    documents,
    row_noise,
    scored_bytes,
)
from archbench.experiments.tasks.metrics import Likelihood, Metric, jackknife
from archbench.experiments.tasks.task import Batch


@dataclass(frozen=True, kw_only=True)
class MaskedLMConfig:
    """Masked language modelling."""

    mask_probability: float = 0.3
    """Share of the tokens to be predicted: 0.15 in BERT, 0.3 in ModernBERT (better in short training)."""
    mask_replace_probability: float = 0.8
    """Of these, the fraction replaced by the mask token."""
    random_replace_probability: float = 0.1
    """Of these, the fraction replaced by a random symbol; the rest is unchanged."""
    evaluation_positions: int | None = 2
    """Positions of each sequence at which the pseudo-likelihood is estimated; null for all positions,
    exactly."""
    separate_documents: bool = False
    """Documents that share a window do not see each other, and each begins at position 0."""
    sampling_steps: int = 32
    """Forward passes to fill in a sample."""

    def __post_init__(self) -> None:
        if not 0 < self.mask_probability <= 1:
            raise ValueError(f"mask_probability={self.mask_probability} must be in (0, 1]")
        if (
            min(self.mask_replace_probability, self.random_replace_probability) < 0
            or self.mask_replace_probability + self.random_replace_probability > 1
        ):
            raise ValueError(
                f"mask_replace_probability={self.mask_replace_probability} and "
                f"random_replace_probability={self.random_replace_probability} "
                "must not be negative nor add up to more than 1"
            )
        if self.evaluation_positions is not None and self.evaluation_positions < 1:
            raise ValueError(
                f"evaluation_positions={self.evaluation_positions} must be at least 1, or null for all"
            )
        if self.sampling_steps < 1:
            raise ValueError(f"sampling_steps={self.sampling_steps} must be at least 1")


class MaskedLM(UnmaskingObjective):
    """BERT's objective. On tasks with answers it masks exactly the answers."""

    Config = MaskedLMConfig
    config: MaskedLMConfig

    @property
    def likelihood(self) -> Likelihood:  # type: ignore[override]
        return Likelihood(
            kind="pseudo",
            estimator="each token given all others (one mask at a time, "
            + ("every position)" if self.config.evaluation_positions is None else "random positions)"),
            samples=self.config.evaluation_positions or 1,
        )

    @classmethod
    def missing_capability(cls, capabilities: Capabilities) -> str | None:
        if capabilities.bidirectional:
            return None
        return "a bidirectional backbone: one that sees both sides of a blank"

    def view(self, batch: Batch, generator: torch.Generator) -> View:
        return self.masked_view(batch, generator) if batch.whole else self.answer_view(batch)

    def masked_view(self, batch: Batch, generator: torch.Generator) -> View:
        """Of each sequence's n symbols, max(1, round(rate * n)) are chosen, as in BERT's code."""
        c, shape, symbol_BT = self.config, batch.tokens_BT.shape, self._symbols(batch)
        noise_BT = torch.rand(shape, generator=generator).masked_fill(~symbol_BT, 2.0)
        order_BT = noise_BT.argsort(1).argsort(1)
        count_B = (c.mask_probability * symbol_BT.sum(1)).round().clamp_min(1)
        chosen_BT = (order_BT < count_B[:, None]) & symbol_BT
        fate_BT = torch.rand(shape, generator=generator)
        symbols_V = self.vocabulary.is_symbol().nonzero().flatten()
        random_BT = symbols_V[torch.randint(len(symbols_V), shape, generator=generator)]
        shown_BT = torch.where(fate_BT < c.mask_replace_probability, self.vocabulary.mask, random_BT)
        shown_BT = torch.where(
            fate_BT < c.mask_replace_probability + c.random_replace_probability, shown_BT, batch.tokens_BT
        )
        return self._view(batch, torch.where(chosen_BT, shown_BT, batch.tokens_BT), chosen_BT)

    def answer_view(self, batch: Batch) -> View:
        hidden_BT = batch.answer_BT & batch.valid_BT
        return self._view(batch, batch.context_BT.masked_fill(hidden_BT, self.vocabulary.mask), hidden_BT)

    def _symbols(self, batch: Batch) -> Tensor:
        """True at tokens that are neither padding nor special."""
        return batch.valid_BT & self.vocabulary.is_symbol()[batch.tokens_BT]

    def _view(self, batch: Batch, shown_BT: Tensor, scored_BT: Tensor) -> View:
        return View(
            tokens_BT=shown_BT,
            valid_BT=None if batch.valid_BT.all() else batch.valid_BT,
            target_BT=batch.tokens_BT,
            weight_BT=scored_BT.float(),
            count_B=scored_BT.sum(1).float(),
            segments_BT=batch.segments_BT,
            # End tokens are never masked, so that the documents are those of the text.
            documents_BT=documents(shown_BT, self.vocabulary) if self.config.separate_documents else None,
        )

    def likelihood_score(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        """Salazar et al. 2020 (arXiv 1910.14659): the sum over positions of log p(token | all others).

        The sum is over the tokens to be scored, and estimated from random ones of them, drawn without
        replacement, or computed over all. The context is the rest of the window on both sides.
        """
        B, T = batch.tokens_BT.shape
        scored_BT = batch.answer_BT & self._symbols(batch)
        length_B = scored_BT.sum(1).clamp_min(1)
        samples_B = length_B.clamp_max(self.config.evaluation_positions or T)
        order_BT = row_noise(generators, batch.valid_BT).masked_fill(~scored_BT, 2.0).argsort(1).argsort(1)
        nats_B = torch.zeros(B, dtype=torch.float64)
        nats_BT = torch.zeros(B, T, dtype=torch.float64)
        for index in range(int(samples_B.max())):
            hidden_BT = (order_BT == index) & scored_BT
            shown_BT = batch.tokens_BT.masked_fill(hidden_BT, self.vocabulary.mask)
            found_BT = self.nats_on_host(model, self._view(batch, shown_BT, hidden_BT))
            nats_B += found_BT.sum(1)
            nats_BT += found_BT
        nats_B = nats_B * length_B / samples_B
        weight_B1 = (length_B / samples_B)[:, None]
        drawn_BT = (order_BT < samples_B[:, None]) & scored_BT
        cluster_B = torch.full((B,), -1) if batch.cluster_B is None else batch.cluster_B
        columns = (nats_B.tolist(), scored_BT.sum(1).tolist(), cluster_B.tolist())
        return Score(
            nats_B=nats_B,
            bytes_B=scored_bytes(batch, scored_BT),
            by_token=TokenScores.of(batch, nats_BT * weight_B1, drawn_BT * weight_B1, scored_BT),
            records=list(zip(*columns, strict=True)),
        )

    def summarise(self, records: Sequence[Any], split: str) -> list[Metric]:
        """The pseudo-perplexity of a token, exp(-sum of PLL / number of tokens) (Salazar et al.)."""
        nats_N, tokens_N, cluster_N = np.array(records, dtype=np.float64).T
        clustered = cluster_N.min() >= 0

        def perplexity(index: NDArray[np.int64]) -> float:
            return math.exp(nats_N[index].sum() / tokens_N[index].sum())

        return [
            Metric(
                name="pseudo_perplexity",
                split=split,
                value=perplexity(np.arange(len(records))),
                unit="per token",
                direction="lower",
                averaging="micro: all nats over all tokens",
                likelihood=self.likelihood.kind,
                estimator=self.likelihood.estimator,
                samples=self.likelihood.samples,
                standard_error=jackknife(perplexity, len(records), cluster_N if clustered else None),
                items=len(records),
                clusters=len(np.unique(cluster_N)) if clustered else len(records),
            )
        ]
