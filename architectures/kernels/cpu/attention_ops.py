"""Softmax attention of whole sequences in C++, forward and backward.

Of each block of queries only the keys between the first and the last that its mask allows are computed; scores
are kept for one block at a time and computed again for the gradient. Numbers are float32 or bfloat16 in memory,
float32 in between. The result does not depend on the number of threads, to the last bit. A second derivative is
refused by PyTorch's own message (``once_differentiable``).

Shapes: B batch, T queries, S keys, H query heads, G key/value heads, E width of queries and keys, F width of
values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from architectures.kernels.cpu.build import call


def cpp_attention(
    q_BHTE: Tensor,
    k_BGSE: Tensor,
    v_BGSF: Tensor,
    *,
    scale: float,
    softcap: float | None = None,
    causal: bool = False,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Return the weighted sums of the values, (B, H, T, F), in memory as (B, T, H, F).

    Args:
        scale: scores are q k^T times this.
        softcap: scores become c tanh(scores / c), before bias and mask; None for no cap.
        causal: query t sees the keys up to t; T is S.
        mask: True where a query may look, (B or 1, 1, T or 1, S). A query that may look nowhere gets zeros.
        bias: added to the scores, (B or 1, H, T, S).
    """
    if bias is not None:
        bias = bias.float()
    return _Attention.apply(q_BHTE, k_BGSE, v_BGSF, mask, bias, causal, scale, softcap or 0.0)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        bias: Tensor | None,
        causal: bool,
        scale: float,
        cap: float,
    ) -> Tensor:
        B, H, T, _ = q.shape
        q, k, v, bias = (_dense(x) for x in (q, k, v, bias))
        mask, bounds = (None, None) if mask is None else _mask(mask, T)
        out = q.new_empty(B, T, H, v.shape[3])
        logs = q.new_empty(B, H, T, dtype=torch.float32)
        ctx.settings = (torch.get_num_threads(), float(scale), float(cap))
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
        dq, dk, dv = (torch.empty_like(x.transpose(1, 2), memory_format=torch.contiguous_format) for x in (q, k, v))
        d_bias = torch.zeros_like(bias) if ctx.needs_input_grad[4] else None
        shape = _shape(q, k, v, d_out.transpose(1, 2), mask, bias, bounds, ctx.causal)
        known = (q, k, v, mask, bias, bounds, out, logs)
        call("attention_backward", shape, *ctx.settings, *known, d_out, dq, dk, dv, d_bias)
        return *(x.transpose(1, 2) for x in (dq, dk, dv)), None, d_bias, None, None, None


def _dense(x: Tensor | None) -> Tensor | None:
    """Return the tensor without gaps in its last dimension."""
    return x if x is None or x.stride(-1) == 1 else x.contiguous()


def _mask(mask: Tensor, queries: int) -> tuple[Tensor, Tensor]:
    """Return the mask without gaps, and of each block of queries the first key that is seen and the last's end."""
    mask = mask.expand(-1, 1, queries, -1).contiguous()
    sequences, _, _, keys = mask.shape
    bounds = torch.empty(sequences, -(-queries // call("attention_rows")), 2, dtype=torch.int64)
    call("attention_bounds", sequences, queries, keys, torch.get_num_threads(), mask, bounds)
    return mask, bounds


def _shape(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out_BTHF: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    bounds: Tensor | None,
    causal: bool,
) -> Tensor:
    """Return sizes and strides in the order of the kernel's ``Shape``; 0 for a dimension that repeats."""

    def steps(x: Tensor | None, *dimensions: int) -> list[int]:
        return [0 if x is None or x.shape[d] == 1 else x.stride(d) for d in dimensions]

    sizes = [*q.shape[:2], k.shape[1], q.shape[2], *k.shape[2:], v.shape[3]]
    streams = [step for x in (q, k, v, out_BTHF.transpose(1, 2)) for step in steps(x, 0, 1, 2)]
    half = int(q.dtype == torch.bfloat16)
    return torch.tensor(
        [*sizes, half, int(causal), *streams, *steps(mask, 0, 2), *steps(bias, 0, 1, 2), *steps(bounds, 0)]
    )
