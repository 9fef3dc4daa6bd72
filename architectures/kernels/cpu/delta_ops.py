"""Delta rules, gated linear attention, RWKV-7 and Mamba-3 in C++: one recurrence for all, float32 on a CPU.

The result does not depend on the number of threads, to the last bit.

Shapes: B batch, T length, H heads, K key width, V value width, S updates of all tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from archbench.architectures.fast_paths import implements
from archbench.architectures.kernels.cpu.build import call, rows

LINEAR, DELTA, APART = range(3)
"""Numbers of the kernel: without a recall, with one by the key that is written, with vectors apart."""


@implements("delta_rule")
def cpp_delta_rule(
    q_BTHK: Tensor,
    k_BSHK: Tensor,
    v_BSHV: Tensor,
    beta_BSH: Tensor,
    log_decay: Tensor | None,
    initial_BHKV: Tensor,
    *,
    unit_keys: bool = False,
) -> tuple[Tensor, Tensor]:
    """See ``delta_rule``; the queries are divided by the root of K here."""
    scale = q_BTHK.shape[-1] ** -0.5
    operands = (q_BTHK, k_BSHK, v_BSHV, beta_BSH, log_decay, None, None, initial_BHKV)
    return _Recurrence.apply(torch.is_grad_enabled(), DELTA, unit_keys, scale, *operands)


@implements("gated_linear_attention")
def cpp_gated_linear_attention(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_decay: Tensor,
    initial_BHKV: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """See ``gated_linear_attention``. The queries are divided by the root of K, or times ``scale``; decays
    are of channels (B, T, H, K) or of heads (B, T, H)."""
    scale = q_BTHK.shape[-1] ** -0.5 if scale is None else scale
    operands = (q_BTHK, k_BTHK, v_BTHV, None, log_decay, None, None, initial_BHKV)
    return _Recurrence.apply(torch.is_grad_enabled(), LINEAR, False, scale, *operands)


@implements("dplr")
def cpp_dplr(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    a_BTHK: Tensor,
    b_BTHK: Tensor,
    log_decay_BTHK: Tensor,
    initial_BHKV: Tensor,
) -> tuple[Tensor, Tensor]:
    """See ``dplr``."""
    operands = (q_BTHK, k_BTHK, v_BTHV, None, log_decay_BTHK, a_BTHK, b_BTHK, initial_BHKV)
    return _Recurrence.apply(torch.is_grad_enabled(), APART, False, 1.0, *operands)


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        trains: bool,
        kind: int,
        unit: bool,
        scale: float,
        q_BTHK: Tensor,
        k_BSHK: Tensor,
        v_BSHV: Tensor,
        *others: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        q, k, v = (rows(x.flatten(2)) for x in (q_BTHK, k_BSHK, v_BSHV))
        beta, decay, a, b, initial = (None if x is None else x.contiguous() for x in others)
        assert initial is not None
        B, T, H, K = q_BTHK.shape
        updates, V = k_BSHK.shape[1] // T, v_BSHV.shape[-1]
        ctx.sizes = (B, T, updates, H, K, V)
        decays = 0 if decay is None else decay.dim() - 2
        strides = (q.stride(1), k.stride(1), v.stride(1))
        ctx.settings = (*ctx.sizes, torch.get_num_threads(), kind, decays, unit, *strides, scale)
        written = q.new_empty(v_BSHV.shape) if trains else None
        starts = q.new_empty(call("delta_starts", *ctx.sizes)) if trains else None
        y_BTHV, last_BHKV = q.new_empty(B, T, H, V), torch.empty_like(initial)
        operands = (q, k, v, beta, decay, a, b)
        call("delta_forward", *ctx.settings, *operands, initial, y_BTHV, written, starts, last_BHKV)
        ctx.save_for_backward(*operands, written, starts)
        return y_BTHV, last_BHKV

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dy, d_last = (x.contiguous() for x in gradients)
        *operands, written, starts = ctx.saved_tensors
        found = [None if x is None else x.new_empty(x.shape) for x in (*operands, d_last)]
        call("delta_backward", *ctx.settings, *operands, written, starts, dy, d_last, *found)
        streams = (x.unflatten(-1, (ctx.sizes[3], -1)) for x in found[:3] if x is not None)
        return None, None, None, None, *streams, *found[3:]
