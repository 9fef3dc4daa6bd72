"""Sequences cut into chunks, and the decays between positions of a chunk.

Decays are logarithms. Sums of them are accumulated, never subtracted from
each other: a difference of two long sums loses its digits, and minus infinity,
which forgets everything, would give nan.

Shapes: B batch, T length, H heads, N chunks, C positions of a chunk.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def to_chunks(x_BTH: Tensor, size: int) -> Tensor:
    """(B, T, H, ...) as (B, H, N, C, ...), the last chunk filled up with zeros."""
    x_BHT = x_BTH.transpose(1, 2)
    missing = -x_BHT.shape[2] % size
    padding = (0, 0) * (x_BHT.dim() - 3) + (0, missing)
    return F.pad(x_BHT, padding).unflatten(2, (-1, size))


def from_chunks(x_BHNC: Tensor, length: int) -> Tensor:
    """The inverse of ``to_chunks``: (B, T, H, ...) of the first ``length`` positions."""
    return x_BHNC.flatten(2, 3)[:, :, :length].transpose(1, 2)


def pair_sums(x_C: Tensor) -> Tensor:
    """Sums (..., C, C) over the positions after j up to and including i; minus infinity for j > i."""
    size = x_C.shape[-1]
    lower_CC = torch.ones(size, size, dtype=torch.bool, device=x_C.device).tril()
    terms_CC = x_C[..., None].expand(*x_C.shape, size).masked_fill(~lower_CC.tril(-1), 0.0)
    return terms_CC.cumsum(-2).masked_fill(~lower_CC, -torch.inf)


def sums_after(x_CK: Tensor) -> Tensor:
    """Sums (..., C, K) over the positions after each one, to the end."""
    after_CK = F.pad(x_CK[..., 1:, :], (0, 0, 0, 1))
    return after_CK.flip(-2).cumsum(-2).flip(-2)
