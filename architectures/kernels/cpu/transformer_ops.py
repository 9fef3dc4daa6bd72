"""RMSNorm, activations, rotary positions and cross-entropy in C++, one pass over memory each.

RMSNorm, activation times gate, rotary positions and cross-entropy: float32 or bfloat16 in memory, float32 in
between, forward and backward. The result does not depend on the number of threads, to the last bit. Second
derivatives raise PyTorch's error of ``once_differentiable``.

Shapes: any, over the last dimension; N rows, V columns; B batch, T length, H heads, E head_dim, R rotated.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from architectures.kernels.cpu.build import call

ACTIVATIONS = ("silu", "gelu_tanh", "gelu")
"""In the order of their indices in the kernel."""


def cpp_rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, rounded once, to ``dtype``."""
    return _Norm.apply(x, weight.float(), eps, dtype)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        y = torch.empty_like(x, dtype=dtype)
        width = x.shape[-1]
        ctx.settings = (x.shape[:-1].numel(), width, torch.get_num_threads(), _half(x), _half(y), eps)
        call("norm_forward", *ctx.settings, x, weight, y)
        ctx.save_for_backward(x, weight)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dx, d_weight = torch.empty_like(x), torch.empty_like(weight)
        call("norm_backward", *ctx.settings, x, weight, gradients[0].contiguous(), dx, d_weight)
        return dx, d_weight, None, None


def cpp_activation(kind: str, x: Tensor, factor: Tensor | None = None) -> Tensor:
    """``activation(x)``, times ``factor`` if it is not None; both have the same shape and dtype."""
    return _Activation.apply(x, factor, ACTIVATIONS.index(kind))


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor | None, kind: int) -> Tensor:
        x, factor = x.contiguous(), None if factor is None else factor.contiguous()
        y = torch.empty_like(x)
        ctx.settings = (x.numel(), kind, torch.get_num_threads(), _half(x))
        call("activation_forward", *ctx.settings, x, factor, y)
        ctx.save_for_backward(x, factor)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, factor = ctx.saved_tensors
        dx, d_other = torch.empty_like(x), None if factor is None else torch.empty_like(x)
        call("activation_backward", *ctx.settings, x, factor, gradients[0].contiguous(), dx, d_other)
        return dx, d_other, None


def cpp_cross_entropy(logits_NV: Tensor, target_N: Tensor, never: int | None = None) -> Tensor:
    """Cross-entropy of each row (N,), in float32; column ``never`` counts as a logit of minus infinity.

    Raises:
        IndexError: a target is no column.
    """
    width = logits_NV.shape[1]
    if len(target_N) and not (int(target_N.min()) >= 0 and int(target_N.max()) < width):
        raise IndexError(f"targets must lie in [0, {width}), where logits are")
    return _Entropy.apply(logits_NV, target_N, -1 if never is None else never)


class _Entropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, never: int) -> Tensor:
        logits, target = logits.contiguous(), target.contiguous()
        logs, nats = (logits.new_empty(len(logits), dtype=torch.float32) for _ in range(2))
        ctx.settings = (*logits.shape, never, torch.get_num_threads(), _half(logits))
        call("entropy_forward", *ctx.settings, logits, target, logs, nats)
        ctx.save_for_backward(logits, target, logs)
        return nats

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, logs = ctx.saved_tensors
        d_logits = torch.empty_like(logits)
        call("entropy_backward", *ctx.settings, logits, target, logs, gradients[0].contiguous(), d_logits)
        return d_logits, None, None


def cpp_rotate(x_BTHE: Tensor, cos_PR: Tensor, sin_PR: Tensor, *, interleaved: bool) -> Tensor:
    """Rotate pairs of the first dimensions of each head; see ``Rotary``.

    The tables (T, R/2) or (B T, R/2) are float32 for every dtype of x.
    """
    return _Rotation.apply(x_BTHE, cos_PR.contiguous(), sin_PR.contiguous(), interleaved)


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        return _rotated(x, cos, sin, interleaved, back=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _rotated(gradients[0], cos, sin, ctx.interleaved, back=True), None, None, None


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, *, back: bool) -> Tensor:
    x = x.contiguous()
    tokens, (heads, width) = x.shape[:2].numel(), x.shape[2:]
    y = torch.empty_like(x)
    settings = (tokens, heads, width, cos.shape[1], len(cos), interleaved, back, torch.get_num_threads())
    call("rotate", *settings, _half(x), heads * width, x, cos, sin, y)
    return y


def _half(x: Tensor) -> int:
    return int(x.dtype == torch.bfloat16)
