"""Norms, activations and cross-entropy: by PyTorch's operations, or in one pass in C++.

On a CPU PyTorch needs multiple passes over memory for RMSNorm, for an activation times a gate, for rotary
positions and for cross-entropy, and autograd saves the intermediate results. The kernels of
``cpu.transformer_ops`` need one in each direction. They run for plain tensors on a CPU, in float32 or
bfloat16, where a C++ compiler is found and they were measured to be faster (``cpu.where``); all else (other
devices and precisions, torch.compile, torch.export, torch.func, sharded tensors) is PyTorch's. In float32
both give the same values up to rounding; in bfloat16 the kernels round once, at the end.

There is one switch for the process, ``choose`` (``device.kernels`` of a run), as there is one for the
number of threads: it selects an implementation and not a result, so that it is not part of a model's
configuration. ``Backbone.kernels`` reports the selected kernels.

Shapes: any, over the last dimension; N rows, V columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archbench.architectures.kernels.cpu import build
from archbench.architectures.kernels.cpu.transformer_ops import (
    cpp_activation,
    cpp_cross_entropy,
    cpp_rms_norm,
)
from archbench.architectures.kernels.cpu.where import faster

CHOICES = ("auto", "torch", "cpp")
PRECISIONS = (torch.float32, torch.bfloat16)

_chosen = "auto"


def choose(choice: str) -> None:
    """Set the implementation for the process: ``auto``, ``torch`` (PyTorch's) or ``cpp``.

    Raises:
        ValueError: there is no such choice, or ``cpp`` cannot be built here.
    """
    global _chosen
    if choice not in CHOICES:
        raise ValueError(f"kernels={choice!r} must be one of {', '.join(CHOICES)}")
    if choice == "cpp" and (problem := build.problem()):
        raise ValueError(
            f"kernels=cpp cannot be built here ({problem}): install a C++ compiler such as g++, "
            "or set kernels=auto"
        )
    _chosen = choice


def chosen() -> str:
    """Return what ``choose`` has set."""
    return _chosen


def path(*operands: Tensor) -> str:
    """Return the path that runs for such operands: ``cpp`` or ``torch``."""
    if _chosen == "torch" or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return "torch"
    if torch._C._are_functorch_transforms_active() or not all(map(_plain, operands)):
        return "torch"
    return "torch" if build.problem() else "cpp"


def uses_cpp(kernel: str, *operands: Tensor) -> bool:
    """Return True where a kernel computes such operands: it can, and is faster (``cpu.where``)."""
    if path(*operands) != "cpp":
        return False
    trained = torch.is_grad_enabled() and any(x.requires_grad for x in operands)
    return faster(kernel, operands[0], trained=trained)


def _plain(x: Tensor) -> bool:
    kind = type(x) in (Tensor, nn.Parameter)
    return kind and x.device.type == "cpu" and x.dtype in PRECISIONS and not x.is_neg()


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
    """RMSNorm over the last dimension (Zhang and Sennrich 2019, arXiv 1910.07467), times ``weight``.

    ``dtype`` is that of the result; None for that of x.
    """
    dtype = dtype or x.dtype
    if dtype in PRECISIONS and uses_cpp("rms_norm", x, weight):
        return cpp_rms_norm(x, weight, eps, dtype)
    return F.rms_norm(x, weight.shape, weight, eps).to(dtype)


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
            return cpp_activation(self.name, x)
        return self.by_torch(x)

    def times(self, x: Tensor, factor: Tensor) -> Tensor:
        """``activation(x) * factor``."""
        compatible = x.dtype == factor.dtype and x.shape == factor.shape
        if self.gated and compatible and uses_cpp(f"{self.name} gated", x, factor):
            return cpp_activation(self.name, x, factor)
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


def cross_entropy(logits_NV: Tensor, target_N: Tensor, never: int | None = None) -> Tensor:
    """Cross-entropy of each row (N,), in float32 for every dtype of the logits.

    ``never`` is a token that can never be right: its logit counts as minus infinity.
    """
    if uses_cpp("cross_entropy", logits_NV):
        return cpp_cross_entropy(logits_NV, target_N, never)
    logits_NV = logits_NV.float()
    if never is not None:
        never_V = torch.arange(logits_NV.shape[-1], device=logits_NV.device) == never
        logits_NV = logits_NV.masked_fill(never_V, -torch.inf)
    return F.cross_entropy(logits_NV, target_N, reduction="none")
