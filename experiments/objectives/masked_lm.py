"""Masked language modelling: hide some tokens, predict them from the rest.

Devlin et al. 2019 (arXiv 1810.04805), section 3.1: a share of the tokens is chosen;
of these 80% become the mask token, 10% a random token, 10% stay.

Shapes: B batch, T length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from architectures.backbone import Backbone, Capabilities
from experiments.objectives.objective import Likelihood, Objective, Score, View, row_noise, scored_bytes
from experiments.objectives.unmasking import unmask
from experiments.tasks.task import Batch


@dataclass(frozen=True, kw_only=True)
class MaskedLMConfig:
    """Masked language modelling."""

    rate: float = 0.3
    """Share of the tokens to be predicted: 0.15 in BERT, 0.3 in ModernBERT (better in short training)."""
    mask_share: float = 0.8
    """Of these, the share shown as the mask token."""
    random_share: float = 0.1
    """Of these, the share shown as a random symbol; the rest is shown as it is."""
    evaluation_positions: int = 8
    """Positions of each sequence at which the pseudo-likelihood is estimated."""
    sampling_steps: int = 32
    """Forward passes to fill in a sample."""

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate={self.rate} must lie in (0, 1]")
        if min(self.mask_share, self.random_share) < 0 or self.mask_share + self.random_share > 1:
            raise ValueError(
                f"mask_share={self.mask_share} and random_share={self.random_share} "
                "must not be negative nor add up to more than 1"
            )
        if self.evaluation_positions < 1 or self.sampling_steps < 1:
            raise ValueError("evaluation_positions and sampling_steps must be at least 1")


class MaskedLM(Objective):
    """BERT's objective. On tasks with answers it hides all answers and nothing else."""

    Config = MaskedLMConfig
    config: MaskedLMConfig
    sees = "the tokens around"

    @property
    def likelihood(self) -> Likelihood:  # type: ignore[override]
        return Likelihood(
            kind="pseudo",
            estimator="each token given all others (one mask at a time, random positions)",
            samples=self.config.evaluation_positions,
        )

    @classmethod
    def requires(cls, capabilities: Capabilities) -> str | None:
        if capabilities.bidirectional:
            return None
        return "a bidirectional backbone: one that sees both sides of a blank"

    def view(self, batch: Batch, generator: torch.Generator) -> View:
        if not batch.whole:
            return self.answer_view(batch)
        c, shape = self.config, batch.tokens_BT.shape
        noise_BT = torch.rand(shape, generator=generator).masked_fill(~batch.valid_BT, 2.0)
        order_BT = noise_BT.argsort(1).argsort(1)
        count_B = (c.rate * batch.valid_BT.sum(1)).round().clamp_min(1)
        chosen_BT = (order_BT < count_B[:, None]) & batch.valid_BT
        fate_BT = torch.rand(shape, generator=generator)
        random_BT = torch.randint(self.vocabulary.num_symbols, shape, generator=generator)
        shown_BT = torch.where(fate_BT < c.mask_share, self.vocabulary.mask, random_BT)
        shown_BT = torch.where(fate_BT < c.mask_share + c.random_share, shown_BT, batch.tokens_BT)
        return self._view(batch, torch.where(chosen_BT, shown_BT, batch.tokens_BT), chosen_BT)

    def answer_view(self, batch: Batch) -> View:
        hidden_BT = batch.answer_BT & batch.valid_BT
        return self._view(batch, batch.context_BT.masked_fill(hidden_BT, self.vocabulary.mask), hidden_BT)

    def _view(self, batch: Batch, shown_BT: Tensor, scored_BT: Tensor) -> View:
        return View(
            tokens_BT=shown_BT,
            valid_BT=None if batch.valid_BT.all() else batch.valid_BT,
            target_BT=batch.tokens_BT,
            weight_BT=scored_BT.float(),
            count_B=scored_BT.sum(1).float(),
        )

    def likelihood_score(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        """Salazar et al. 2020 (arXiv 1910.14659): the sum over positions of log p(token | all others).

        The sum is estimated from random positions, drawn without replacement.
        """
        device = next(model.parameters()).device
        B, T = batch.tokens_BT.shape
        scored_BT = batch.answer_BT & batch.valid_BT
        length_B = scored_BT.sum(1).clamp_min(1)
        samples_B = length_B.clamp_max(self.config.evaluation_positions)
        order_BT = row_noise(generators, T).masked_fill(~scored_BT, 2.0).argsort(1).argsort(1)
        nats_B = torch.zeros(B, dtype=torch.float64)
        for index in range(int(samples_B.max())):
            hidden_BT = (order_BT == index) & scored_BT
            shown_BT = batch.tokens_BT.masked_fill(hidden_BT, self.vocabulary.mask)
            view = self._view(batch, shown_BT, hidden_BT).to(device)
            nats_B += self.nats(view.run(model), view).double().sum(1).cpu()
        return Score(nats_B=nats_B * length_B / samples_B, bytes_B=scored_bytes(batch, scored_BT))

    def sample(
        self,
        model: Backbone,
        prompt_BT: Tensor,
        length: int,
        generator: torch.Generator,
        temperature: float = 1.0,
    ) -> Tensor:
        steps = self.config.sampling_steps
        return unmask(
            model, prompt_BT, length, self.vocabulary, generator, steps=steps, temperature=temperature
        )
