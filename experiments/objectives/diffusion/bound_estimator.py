"""The noise from which the bound of masked diffusion is estimated: by fixed counts of masks, or by times.

Both give masks (B, T), the weights (B, T) of the masked tokens' cross-entropies, with a sum that is unbiased
for the bound, and the masked fraction (B,) of the first block. ``part`` is the offset (of all sequences, or
of each, (B, 1)) and the width of the uniform draw, so that the samples of a sequence are stratified. Noise is
drawn where ``drawn_BT`` is True.

Shapes: B batch, K blocks (one, but in block diffusion), T length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from archbench.experiments.objectives.diffusion.noise_schedules import (
    NoiseConfig,
    inverse_weight,
    masked_fraction,
)
from archbench.experiments.objectives.objective import row_noise

Noised = tuple[Tensor, Tensor, Tensor]


def drawn_blocks(drawn_BT: Tensor, block_T: Tensor) -> Tensor:
    """Return True (B, K) at the blocks that have a position for which noise is drawn."""
    count_BK = torch.zeros(len(drawn_BT), int(block_T[-1]) + 1)
    return count_BK.index_add_(1, block_T, drawn_BT.float()) > 0


def fixed_count(
    scored_BT: Tensor,
    drawn_BT: Tensor,
    block_T: Tensor,
    generators: Sequence[torch.Generator],
    part: tuple[float | Tensor, float],
) -> Noised:
    """Of a block's N tokens l are masked, l uniform on 1..N, and weigh N / l.

    Nie et al. 2025 (LLaDA, arXiv 2502.09992), equation 6. Unbiased for the integral over t, with far less
    variance. Blocks are contiguous.

    The authors' get_log_likelihood.py spreads l over a batch of b copies by rounding multiples of N / b.
    Rounding is half to even: with N = 12 and b = 8 an even l is drawn three times as often as
    an odd one. Where the exact value is 7.884 nats, it gave 7.31 and this 7.876. Here l is the floor of a
    uniform draw, so that all are equally likely.
    """
    size_BK = torch.zeros(len(scored_BT), int(block_T[-1]) + 1)
    size_BK.index_add_(1, block_T, scored_BT.float()).clamp_min_(1)
    low, width = part
    u_BK = row_noise(generators, drawn_blocks(drawn_BT, block_T)).double()
    masks_BK = (1 + ((low + u_BK * width) * size_BK).floor()).clamp_max(size_BK)
    # Ranks by block, in it the scored tokens first, in random order.
    within_BT = torch.where(scored_BT, 0.5 * row_noise(generators, drawn_BT).double(), 0.75)
    rank_BT = (block_T + within_BT).argsort(1).argsort(1) - torch.searchsorted(block_T, block_T)
    masked_BT = (rank_BT < masks_BK[:, block_T]) & scored_BT
    weight_BT = masked_BT * (size_BK / masks_BK).float()[:, block_T]
    return masked_BT, weight_BT, (masks_BK / size_BK).float()[:, 0]


def by_time(
    scored_BT: Tensor,
    drawn_BT: Tensor,
    block_T: Tensor,
    generators: Sequence[torch.Generator],
    part: tuple[float, float],
    noise: NoiseConfig,
) -> Noised:
    """Each block's tokens are masked as at a time drawn for it: the definition of the bound."""
    low, width = part
    u_BK = row_noise(generators, drawn_blocks(drawn_BT, block_T)).double()
    time_BK = 1 - (low + u_BK * width)  # in (0, 1]
    fraction_BK = masked_fraction(time_BK, noise)
    noise_BT = row_noise(generators, drawn_BT).double()
    masked_BT = (noise_BT < fraction_BK[:, block_T]) & scored_BT
    weight_BT = masked_BT / inverse_weight(time_BK, noise)[:, block_T]
    return masked_BT, weight_BT.float(), fraction_BK.float()[:, 0]
