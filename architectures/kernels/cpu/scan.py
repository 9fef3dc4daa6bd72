"""The scans of Mamba and Mamba-2 by the C++ kernels, with their gradients: float32 on a CPU.

The result does not depend on the number of threads, to the last bit.

Shapes: B batch, T length, C channels, N state size; H heads, P head_dim, G groups of heads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from architectures.kernels.cpu.build import call, rows


def cpp_selective_scan(
    u_BTC: Tensor,
    delta_BTC: Tensor,
    A_CN: Tensor,
    B_BTN: Tensor,
    C_BTN: Tensor,
    initial_BCN: Tensor,
    keep_BT: Tensor | None,
    negative: bool,
) -> tuple[Tensor, Tensor]:
    """See ``selective_scan``; ``keep_BT`` is 0 where the state before the step is forgotten, else 1."""
    operands = (u_BTC, delta_BTC, A_CN, B_BTN, C_BTN, initial_BCN)
    return _SelectiveScan.apply(torch.is_grad_enabled(), *operands, keep_BT, negative)


class _SelectiveScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *operands: Any) -> tuple[Tensor, Tensor]:
        trains, *tensors, keep, negative = operands
        u, delta, A, B, C, initial = (x.contiguous() for x in tensors)
        keep = None if keep is None else keep.contiguous()
        ctx.sizes = (*u.shape, A.shape[1])
        starts = u.new_empty(call("scan_starts", *ctx.sizes)) if trains else None
        y, last_state = torch.empty_like(u), torch.empty_like(initial)
        settings = (*ctx.sizes, torch.get_num_threads(), negative)
        call("scan_forward", *settings, u, delta, A, B, C, initial, keep, y, starts, last_state)
        ctx.save_for_backward(u, delta, A, B, C, keep, starts)
        ctx.negative = negative
        return y, last_state

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dy, d_last = (x.contiguous() for x in gradients)
        u, delta, A, B, C, keep, starts = ctx.saved_tensors
        input_gradients = [torch.empty_like(x) for x in (u, delta, A, B, C, d_last)]
        settings = (*ctx.sizes, torch.get_num_threads(), ctx.negative)
        call("scan_backward", *settings, u, delta, A, B, C, keep, starts, dy, d_last, *input_gradients)
        return None, *input_gradients, None, None


def cpp_ssd(
    x_BTHP: Tensor,
    delta_BTH: Tensor,
    decay_BTH: Tensor,
    B_BTGN: Tensor,
    C_BTGN: Tensor,
    initial_BHPN: Tensor,
) -> tuple[Tensor, Tensor]:
    """``h_t = decay_t h_(t-1) + delta_t x_t B_t^T`` and ``y_t = h_t C_t`` of each head; see ``ssd``."""
    groups = B_BTGN.shape[2]
    x_BTI, B_BTS, C_BTS = (x.flatten(2) for x in (x_BTHP, B_BTGN, C_BTGN))
    operands = (x_BTI, delta_BTH, decay_BTH, B_BTS, C_BTS, initial_BHPN)
    return _SSD.apply(torch.is_grad_enabled(), *operands, groups)


class _SSD(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        trains: bool,
        x_BTI: Tensor,
        delta_BTH: Tensor,
        decay_BTH: Tensor,
        B_BTS: Tensor,
        C_BTS: Tensor,
        initial_BHPN: Tensor,
        groups: int,
    ) -> tuple[Tensor, Tensor]:
        x, B, C = rows(x_BTI), rows(B_BTS), rows(C_BTS)
        if B.stride(1) != C.stride(1):
            B, C = B.contiguous(), C.contiguous()
        delta, decay, initial = (part.contiguous() for part in (delta_BTH, decay_BTH, initial_BHPN))
        ctx.sizes = (*delta.shape, initial.shape[2], groups, initial.shape[3])
        ctx.strides = (x.stride(1), B.stride(1))
        starts = x.new_empty(call("ssd_starts", *ctx.sizes)) if trains else None
        y_BTHP, last_state = x.new_empty(*delta.shape, initial.shape[2]), torch.empty_like(initial)
        settings = (*ctx.sizes, torch.get_num_threads(), *ctx.strides)
        call("ssd_forward", *settings, x, delta, decay, B, C, initial, y_BTHP, starts, last_state)
        ctx.save_for_backward(x, delta, decay, B, C, starts)
        return y_BTHP, last_state

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dy, d_last = (x.contiguous() for x in gradients)
        x, delta, decay, B, C, starts = ctx.saved_tensors
        input_gradients = [x.new_empty(part.shape) for part in (x, delta, decay, B, C, d_last)]
        settings = (*ctx.sizes, torch.get_num_threads(), *ctx.strides)
        call("ssd_backward", *settings, x, delta, decay, B, C, starts, dy, d_last, *input_gradients)
        return None, *input_gradients, None
