"""Unmasking of a given text in the order of a sampler, to find the probabilities of its tokens on the way.

Shapes: B batch, N scored tokens of a row, R rows that are worked on, T length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from archbench.architectures.backbone import Backbone
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.objectives.decoding.sampling import SamplingConfig
from archbench.experiments.objectives.diffusion.noise_schedules import NoiseConfig
from archbench.experiments.objectives.diffusion.unmasking_sampler import guided_predictor
from archbench.experiments.objectives.diffusion.unmasking_schedule import Unmasker, UnmaskingConfig
from archbench.experiments.tasks.task import Batch


@torch.no_grad()
def path_nats(
    model: Backbone,
    batch: Batch,
    vocabulary: Vocabulary,
    *,
    steps: int,
    generators: Sequence[torch.Generator],
    unmasking: UnmaskingConfig,
    noise: NoiseConfig,
    continues: bool,
) -> Tensor:
    """-log p (B, T) of each scored token when a sampler unmasks it, float64 in CPU memory.

    All scored tokens are masked at first.

    Args:
        steps: forward passes at most, as in sampling.
        generators: draw the order of each row, if it is random.
        continues: whether the masked fraction is of the full text, or only of the scored tokens.
    """
    device = next(model.parameters()).device
    scored_BT = batch.answer_BT & batch.valid_BT
    nats_BT = torch.zeros(scored_BT.shape, dtype=torch.float64)
    count_B = scored_BT.sum(1)
    for count in count_B[count_B > 0].unique():
        rows_R = (count_B == count).nonzero().flatten()
        open_RT = scored_BT[rows_R].to(device)
        tokens_RT = batch.tokens_BT[rows_R].to(device)
        valid_RT = batch.valid_BT[rows_R].to(device)
        place_RN = open_RT.nonzero()[:, 1].view(len(rows_R), -1)
        mask = vocabulary.mask
        path = _Path(
            predict=guided_predictor(
                model, None if valid_RT.all() else valid_RT, open_RT, unmasking.guidance, mask
            ),
            tokens_BT=tokens_RT.masked_fill(open_RT, mask),
            place_BN=place_RN,
            masked_BN=torch.ones_like(place_RN, dtype=torch.bool),
            size_B=valid_RT.sum(1) if continues else torch.full_like(rows_R, int(count)).to(device),
            unmasking=unmasking,
            noise=noise,
            sampling=SamplingConfig(),
            generators=[generators[row] for row in rows_R.tolist()],
            forbidden_V=torch.arange(vocabulary.size, device=device) == mask,
            mask=mask,
            target_BN=tokens_RT.gather(1, place_RN),
            nats_BN=torch.zeros(place_RN.shape, dtype=torch.float64, device=device),
        )
        path.run(steps)
        nats_BT[rows_R] = nats_BT[rows_R].scatter(1, place_RN.cpu(), path.nats_BN.cpu())
    return nats_BT


@dataclass(kw_only=True)
class _Path(Unmasker):
    """Unmasking that reveals the tokens of a text instead of drawing them."""

    target_BN: Tensor
    nats_BN: Tensor
    """-log p of each token in the last forward pass before it was revealed."""

    def _choose(self, logits_RNV: Tensor, block: slice, rows: Sequence[int]) -> Tensor:
        rows_R = torch.tensor(rows, device=self.nats_BN.device)
        target_RN = self.target_BN[rows_R, block]
        log_p_RNV = logits_RNV.double().log_softmax(-1)
        nats_RN = -log_p_RNV.gather(-1, target_RN[..., None]).squeeze(-1)
        masked_RN = self.masked_BN[rows_R, block]
        self.nats_BN[rows_R, block] = torch.where(masked_RN, nats_RN, self.nats_BN[rows_R, block])
        return target_RN
