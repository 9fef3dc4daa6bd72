"""Any-order autoregression: predict the tokens that come later in a random order from those before.

Hoogeboom et al. 2022 (ARDM, arXiv 2110.02037), algorithm 2; Uria et al. 2014 (arXiv 1310.1757). An order's
likelihood is the product, by the chain rule, of each token given those before it in the order. The mean over
orders of -log p is the bound of masked diffusion: masked are the tokens that are not reached yet. Training
draws one of the N steps of an order, and predicts all tokens that come later with weight N / (number of
these). Masked diffusion draws a time instead, so that the number of masks varies around it.

Shapes: B batch, T length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from archbench.experiments.objectives.diffusion.bound_estimator import fixed_count
from archbench.experiments.objectives.diffusion.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.experiments.objectives.diffusion.noise_schedules import NoiseConfig
from archbench.experiments.objectives.objective import View
from archbench.experiments.tasks.task import Batch


@dataclass(frozen=True, kw_only=True)
class AnyOrderConfig(MaskedDiffusionConfig):
    """Any-order autoregression. Training has no times: ``noise.schedule`` is only for ancestral sampling."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given = (self.min_time, self.noise.times, self.noise.max_time)
        if given != (MaskedDiffusionConfig.min_time, NoiseConfig.times, NoiseConfig.max_time):
            raise ValueError(
                f"min_time={given[0]}, noise.times={given[1]} and noise.max_time={given[2]}: leave them out: "
                "any_order draws numbers of masks, not times"
            )


class AnyOrder(MaskedDiffusion):
    """Training by random steps of random orders. On tasks with answers only the answers are ever masked."""

    Config = AnyOrderConfig
    config: AnyOrderConfig

    def view(self, batch: Batch, generator: torch.Generator) -> View:
        """Of each sequence's N scored tokens l are masked, l spread over 1..N within the batch."""
        batch = self._canvas(batch)
        B, T = batch.tokens_BT.shape
        offset_B1 = torch.arange(B)[:, None] / B
        scored_BT = batch.answer_BT & batch.valid_BT
        noised = fixed_count(
            scored_BT, torch.ones_like(scored_BT), self.blocks(T), [generator] * B, (offset_B1, 1 / B)
        )
        return self._averaged(self.noised_view(batch, batch.tokens_BT, *noised))
