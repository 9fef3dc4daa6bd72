"""The exact likelihood of text under a sampler whose positions follow from the tokens that are shown.

Turok et al. 2026 (DUEL, arXiv 2603.01367): where a rule selects the next positions from the shown tokens
alone, a text can be generated along one path only. Its probability is the product over the steps of the
probabilities of the tokens that the step unmasks. It is exact, also with multiple tokens at a step, but it is
the probability under that sampler: each rule and number of steps defines another distribution, at
temperature 1, over all tokens but the mask. The bound of masked diffusion is on the likelihood of random
orders instead, so it may be on either side.

Shapes: B batch, T length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from archbench.architectures.backbone import Backbone
from archbench.experiments.objectives.diffusion.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.experiments.objectives.diffusion.unmasking_path import path_nats
from archbench.experiments.objectives.objective import Objective, Score, TokenScores, scored_bytes
from archbench.experiments.tasks.metrics import Likelihood
from archbench.experiments.tasks.task import Batch


class PathLikelihood(MaskedDiffusion):
    """Scores a model of masked diffusion by the exact likelihood of its sampler; trains nothing."""

    def __init__(self, trained: Objective) -> None:
        """Raises ValueError where chance selects positions, so that a text has many paths.

        Args:
            trained: an objective with ``has_unmasking_path``.
        """
        assert isinstance(trained, MaskedDiffusion)
        assert trained.has_unmasking_path
        chance = trained.unmasking.chance
        if chance is not None:
            raise ValueError(
                f"{chance} selects positions by chance, so the likelihood has no single path: take "
                "filling.method=confidence, and filling.order=largest_probability, margin, entropy or "
                "left_to_right, without a threshold except for largest_probability"
            )
        super().__init__(
            MaskedDiffusionConfig(
                noise=trained.noise, filling=trained.unmasking, sampling_steps=trained.steps
            ),
            trained.task,
        )

    @property
    def likelihood(self) -> Likelihood:  # type: ignore[override]
        filling = self.unmasking
        options = (("threshold", filling.threshold), ("blocks of", filling.block_length))
        given = [f"{name} {value}" for name, value in options if value is not None]
        given += [f"guidance {filling.guidance}"] if filling.guidance else []
        how = ", ".join([filling.order, *given, f"{self.steps} steps"])
        return Likelihood(kind="exact", estimator=f"along the path of a sampler ({how})", samples=1)

    @torch.no_grad()
    def evaluate(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        return self.likelihood_score(model, batch, generators)

    def likelihood_score(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        canvas = self._canvas(batch)
        nats_BT = path_nats(
            model,
            canvas,
            self.vocabulary,
            steps=self.steps,
            generators=generators,
            unmasking=self.unmasking,
            noise=self.noise,
            continues=self.continues,
        )
        scored_BT = batch.answer_BT & batch.valid_BT
        by_token = None
        if self.continues:
            by_token = TokenScores.of(batch, nats_BT, scored_BT, scored_BT)
        return Score(nats_B=nats_BT.sum(1), bytes_B=scored_bytes(batch, scored_BT), by_token=by_token)
