"""RMSNorm, activations, rotary positions, cross-entropy and attention in C++, forward and backward.

Values are float32 or bfloat16 in memory, float32 in between. All but attention pass over memory once.
Attention computes for each block of queries only the keys between the first and the last that its mask
allows; scores are stored for one block at a time and recomputed for the gradient.

The result does not depend on the number of threads, to the last bit. Second derivatives raise PyTorch's error
of ``once_differentiable``.

Shapes: any, over the last dimension; N rows, V columns; B batch, T length or queries, S keys, H (query)
heads, G key/value heads, E head_dim or width of queries and keys, F width of values, R rotated.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from archbench.architectures.fast_paths import implements
from archbench.architectures.kernels.cpu.build import call

ACTIVATIONS = ("silu", "gelu_tanh", "gelu")
"""In the order of their indices in the kernel."""


@implements("rms_norm")
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


@implements("activation")
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


@implements("cross_entropy")
def cpp_cross_entropy(logits_NV: Tensor, target_N: Tensor, never: int | None = None) -> Tensor:
    """Cross-entropy of each row (N,), in float32; column ``never`` counts as a logit of minus infinity.

    Raises:
        IndexError: a target is no column.
    """
    width = logits_NV.shape[1]
    if len(target_N) and not (int(target_N.min()) >= 0 and int(target_N.max()) < width):
        raise IndexError(f"targets must be in [0, {width}), where logits are")
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


@implements("rotate")
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


class _Shape(ctypes.Structure):
    """The structure of the same name in attention.cpp."""

    _fields_ = (("numbers", ctypes.c_int64 * 27),)


@dataclass(frozen=True, kw_only=True)
class SeenKeys:
    """A mask of attention, and between which keys each block of queries sees any."""

    mask: Tensor
    """True where a query may look, (B or 1, 1, T, S), without gaps in memory."""
    bounds: Tensor
    """The first key that a query of a block may look at, and the end of the last, (B or 1, blocks, 2)."""

    @property
    def share(self) -> float:
        """The fraction of all scores that are between them."""
        begin, end = self.bounds.unbind(-1)
        rows = torch.full_like(begin, call("attention_rows"))
        rows[:, -1:] = self.mask.shape[2] - rows[:, :-1].sum(1, keepdim=True)
        return int((rows * (end - begin)).sum()) / max(1, self.mask.numel())


def seen_keys(mask: Tensor, queries: int) -> SeenKeys:
    """Return a mask (B or 1, 1, T or 1, S) with the bounds of the allowed keys, for ``queries`` queries."""
    mask = mask.expand(-1, 1, queries, -1).contiguous()
    sequences, _, _, keys = mask.shape
    bounds = torch.empty(sequences, -(-queries // call("attention_rows")), 2, dtype=torch.int64)
    call("attention_bounds", sequences, queries, keys, torch.get_num_threads(), mask, bounds)
    return SeenKeys(mask=mask, bounds=bounds)


def cpp_attention(
    q_BHTE: Tensor,
    k_BGSE: Tensor,
    v_BGSF: Tensor,
    *,
    scale: float,
    softcap: float | None = None,
    causal: bool = False,
    seen: SeenKeys | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Return the weighted sums of the values, (B, H, T, F), in memory as (B, T, H, F).

    Args:
        scale: scores are q k^T times this.
        softcap: scores become c tanh(scores / c), before bias and mask; None for no cap.
        causal: query t sees the keys up to t; T is S.
        seen: the mask; None where every query attends to every key. A query without keys gets zeros.
        bias: added to the scores, (B or 1, H, T, S).
    """
    mask, bounds = (None, None) if seen is None else (seen.mask, seen.bounds)
    bias = None if bias is None else bias.float()
    streams = q_BHTE, k_BGSE, v_BGSF
    return _Attention.apply(*streams, mask, bounds, bias, causal, float(scale), float(softcap or 0.0))


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        bounds: Tensor | None,
        bias: Tensor | None,
        causal: bool,
        scale: float,
        cap: float,
    ) -> Tensor:
        B, H, T, _ = q.shape
        q, k, v, bias = _dense(q), _dense(k), _dense(v), None if bias is None else _dense(bias)
        out = q.new_empty(B, T, H, v.shape[3])
        logs = q.new_empty(B, H, T, dtype=torch.float32)
        ctx.settings = (torch.get_num_threads(), scale, cap)
        ctx.causal = causal
        shape = _shape(q, k, v, out, mask, bias, bounds, causal)
        call("attention_forward", shape, *ctx.settings, q, k, v, mask, bias, bounds, out, logs)
        ctx.save_for_backward(q, k, v, mask, bias, bounds, out, logs)
        return out.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, bias, bounds, out, logs = ctx.saved_tensors
        d_out = _dense(gradients[0])
        dq, dk, dv = (x.new_empty(x.transpose(1, 2).shape) for x in (q, k, v))
        d_bias = torch.zeros_like(bias) if ctx.needs_input_grad[5] else None
        shape = _shape(q, k, v, d_out.transpose(1, 2), mask, bias, bounds, ctx.causal)
        saved = (q, k, v, mask, bias, bounds, out, logs)
        call("attention_backward", shape, *ctx.settings, *saved, d_out, dq, dk, dv, d_bias)
        return *(x.transpose(1, 2) for x in (dq, dk, dv)), None, None, d_bias, None, None, None


def _dense(x: Tensor) -> Tensor:
    """Return the tensor without gaps in its last dimension."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _shape(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out_BTHF: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    bounds: Tensor | None,
    causal: bool,
) -> _Shape:
    """Return sizes and strides; the stride of a dimension that repeats is 0."""

    def steps(x: Tensor | None, *dimensions: int) -> list[int]:
        return [0 if x is None or x.shape[d] == 1 else x.stride(d) for d in dimensions]

    sizes = [*q.shape[:2], k.shape[1], q.shape[2], *k.shape[2:], v.shape[3]]
    streams = [step for x in (q, k, v, out_BTHF.transpose(1, 2)) for step in steps(x, 0, 1, 2)]
    numbers = (q.dtype == torch.bfloat16, causal, *streams)
    return _Shape((*sizes, *numbers, *steps(mask, 0, 2), *steps(bias, 0, 1, 2), *steps(bounds, 0)))
