"""Softmax attention of full sequences in C++, forward and backward.

For each block of queries only the keys between the first and the last that its mask allows are computed;
scores are stored for one block at a time and recomputed for the gradient. Values are float32 or bfloat16
in memory, float32 in between. The result does not depend on the number of threads, to the last bit. Second
derivatives raise PyTorch's error of ``once_differentiable``.

Shapes: B batch, T queries, S keys, H query heads, G key/value heads, E width of queries and keys, F width of
values.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from architectures.kernels.cpu.build import call


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
