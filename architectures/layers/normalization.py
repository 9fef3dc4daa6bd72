"""Norms: RMSNorm, with its weight or one plus its weight, and LayerNorm with or without bias.

Shapes: any, normalised over the last dimension.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archbench.architectures.fast_paths import PRECISIONS, kernel, uses_cpp

NORMS = ("rmsnorm", "rmsnorm_offset", "layernorm", "layernorm_no_bias")

MakeNorm = Callable[[], nn.Module]


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
    """RMSNorm over the last dimension (Zhang and Sennrich 2019, arXiv 1910.07467), times ``weight``.

    ``dtype`` is that of the result; None for that of x.
    """
    dtype = dtype or x.dtype
    if dtype in PRECISIONS and uses_cpp("rms_norm", x, weight):
        return kernel("rms_norm")(x, weight, eps, dtype)
    return F.rms_norm(x, weight.shape, weight, eps).to(dtype)


class RMSNorm(nn.RMSNorm):
    """RMSNorm (Zhang and Sennrich 2019, arXiv 1910.07467), by the faster path where there is one."""

    weight: nn.Parameter
    eps: float

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__(width, eps=eps)  # PyTorch's default is None, which the kernels cannot read

    def forward(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """``dtype`` is that of the result; None for that of x."""
        return rms_norm(x, self.weight, self.eps, dtype)


class OffsetRMSNorm(nn.Module):
    """RMSNorm times one plus its weight, as in Gemma.

    Weight decay then pulls the factor towards one, not zero. The product is computed
    in at least float32, before the result is cast to the dtype of the input.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """``dtype`` is that of the result; None for that of x."""
        compute_dtype = torch.promote_types(x.dtype, torch.float32)
        return rms_norm(x.to(compute_dtype), 1 + self.weight.to(compute_dtype), self.eps, dtype or x.dtype)


def make_norm(kind: str, width: int, eps: float) -> nn.Module:
    """A norm of one of the kinds in ``NORMS``."""
    if kind == "rmsnorm":
        return RMSNorm(width, eps=eps)
    if kind == "rmsnorm_offset":
        return OffsetRMSNorm(width, eps)
    return nn.LayerNorm(width, eps=eps, bias=kind == "layernorm")


def for_products(norm: nn.Module, x: Tensor) -> Tensor:
    """Return ``norm(x)`` in the precision of the matrix products that read it under autocast on a CPU.

    It is rounded once, for all of them and their gradients, instead of once for each. On a GPU this is left
    to autocast.
    """
    if x.device.type != "cpu" or not torch.is_autocast_enabled("cpu") or x.dtype != torch.float32:
        return norm(x)
    dtype = torch.get_autocast_dtype("cpu")
    return norm(x, dtype) if isinstance(norm, RMSNorm | OffsetRMSNorm) else norm(x).to(dtype)
