"""Positions: rotary embeddings and relative position bias.

Shapes: B batch, H heads, T queries, S keys, E head_dim.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def rotate(x_BHTE: Tensor, positions_T: Tensor, base: float) -> Tensor:
    """Rotary position embedding, half-split layout: pairs are (i, i + E/2).

    Su et al. 2021 (arXiv 2104.09864), eq. 34, in the layout of Llama's released
    weights. Angles are computed in float32 whatever ``x`` is: in bfloat16
    positions above 256 would collide.
    """
    half = x_BHTE.shape[-1] // 2
    frequency_E = base ** (-torch.arange(half, device=x_BHTE.device, dtype=torch.float32) / half)
    angle_TE = positions_T.to(torch.float32)[:, None] * frequency_E
    cos, sin = angle_TE.cos().to(x_BHTE.dtype), angle_TE.sin().to(x_BHTE.dtype)
    first, second = x_BHTE.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class RelativePositionBias(nn.Module):
    """T5's bucketed relative position bias, one table for a whole stack of layers.

    Raffel et al. 2020 (arXiv 1910.10683), section 2.1. Half of the buckets are
    exact distances, the other half logarithmic up to ``max_distance``.
    """

    def __init__(self, num_heads: int, *, bidirectional: bool, num_buckets: int, max_distance: int) -> None:
        super().__init__()
        self.bidirectional = bidirectional
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.table = nn.Embedding(num_buckets, num_heads)

    def forward(self, query_T: Tensor, key_S: Tensor) -> Tensor:
        """Bias (1, H, T, S) to add to the attention scores."""
        bucket_TS = self.bucket(key_S[None, :] - query_T[:, None])
        return self.table(bucket_TS).permute(2, 0, 1)[None]

    def bucket(self, relative: Tensor) -> Tensor:
        """Bucket numbers of relative positions (key minus query)."""
        buckets = self.num_buckets
        offset = torch.zeros_like(relative)
        if self.bidirectional:
            buckets //= 2
            offset = (relative > 0).long() * buckets
            distance = relative.abs()
        else:
            distance = (-relative).clamp_min(0)
        exact = buckets // 2
        scale = (buckets - exact) / math.log(self.max_distance / exact)
        far = exact + (torch.log(distance.clamp_min(1).float() / exact) * scale).long()
        return offset + torch.where(distance < exact, distance, far.clamp_max(buckets - 1))
