"""Elementwise functions, with or without a gate: by PyTorch's operations, or in one pass in C++.

Shapes: any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from archbench.architectures.fast_paths import kernel, uses_cpp


@dataclass(frozen=True)
class Activation:
    """An elementwise function, with or without a gate."""

    name: str
    by_torch: Callable[[Tensor], Tensor]
    alone: bool = False
    """True where there is also a C++ kernel without a gate: PyTorch's tanh is slow, its other activations
    need one pass."""
    gated: bool = True
    """True where there is a C++ kernel that multiplies by a gate."""

    def __call__(self, x: Tensor) -> Tensor:
        if self.alone and uses_cpp(self.name, x):
            return kernel("activation")(self.name, x)
        return self.by_torch(x)

    def times(self, x: Tensor, factor: Tensor) -> Tensor:
        """``activation(x) * factor``."""
        compatible = x.dtype == factor.dtype and x.shape == factor.shape
        if self.gated and compatible and uses_cpp(f"{self.name} gated", x, factor):
            return kernel("activation")(self.name, x, factor)
        return self.by_torch(x) * factor


@dataclass(frozen=True)
class LimitedActivation(Activation):
    """An activation times a gate, both within limits and 1 added to the gate (GPT-OSS, arXiv 2508.10925)."""

    limit: float = 7.0

    def __call__(self, x: Tensor) -> Tensor:
        return self.by_torch(x.clamp(max=self.limit))

    def times(self, x: Tensor, factor: Tensor) -> Tensor:
        """``activation(min(x, limit)) * (clamp(factor, -limit, limit) + 1)``."""
        return self(x) * (factor.clamp(-self.limit, self.limit) + 1)


ACTIVATIONS = {
    activation.name: activation
    for activation in (
        Activation("relu", F.relu, gated=False),
        Activation("relu_squared", lambda x: F.relu(x).square(), gated=False),
        Activation("gelu", F.gelu),
        Activation("gelu_tanh", partial(F.gelu, approximate="tanh"), alone=True),
        Activation("silu", F.silu),
        Activation("quick_gelu", lambda x: x * torch.sigmoid(1.702 * x), gated=False),
    )
}
