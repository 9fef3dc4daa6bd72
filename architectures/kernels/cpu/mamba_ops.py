"""Mamba and Mamba-2 in C++: the scans, and the convolution, gate and norm around them, float32 on a CPU.

Convolution, gate and norm are also those of linear attention.

Convolution, gate and norm pass over memory once. The result does not depend on the number of threads, to the
last bit.

Shapes: B batch, T length, C channels, K taps, N state size; H heads, P head_dim, G groups of heads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from archbench.architectures.fast_paths import implements
from archbench.architectures.kernels.cpu.build import call, rows

NORMS = ("none", "after_gate", "before_gate")
THEN = ("nothing", "silu", "add")
"""In the order of their indices in the kernels."""


@implements("convolution")
def cpp_convolution(
    x_BTC: Tensor,
    weight_CK: Tensor,
    bias_C: Tensor | None,
    positions_BT: Tensor | None,
    *,
    then: str = "silu",
) -> Tensor:
    """Return the causal depthwise convolution, and ``then`` its ``silu``, its sum with x (``add``) or
    ``nothing``; see ``CausalConvolution``."""
    weight_CK, bias_C = weight_CK.float(), None if bias_C is None else bias_C.float()
    if positions_BT is not None:
        positions_BT = positions_BT.expand(x_BTC.shape[:2]).contiguous()
    return _Convolution.apply(x_BTC.float(), weight_CK, bias_C, positions_BT, THEN.index(then)).to(
        x_BTC.dtype
    )


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, positions: Tensor | None, then: int
    ) -> Tensor:
        x, weight = rows(x), weight.contiguous()
        y = x.new_empty(x.shape)
        ctx.settings = (*x.shape, weight.shape[1], torch.get_num_threads(), x.stride(1), then)
        call("convolution_forward", *ctx.settings, x, weight, bias, positions, y)
        ctx.save_for_backward(x, weight, bias, positions)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, positions = ctx.saved_tensors
        dy, dx = gradients[0].contiguous(), x.new_empty(x.shape)
        d_weight, d_bias = torch.empty_like(weight), weight.new_empty(weight.shape[0])
        call("convolution_backward", *ctx.settings, x, weight, bias, positions, dy, dx, d_weight, d_bias)
        return dx, d_weight, None if bias is None else d_bias, None, None


@implements("finish")
def cpp_finish(
    y_BTC: Tensor,
    x_BTC: Tensor | None,
    gate_BTC: Tensor,
    D_C: Tensor | None,
    *,
    silu: bool = True,
    norm: str = "none",
    weight_C: Tensor | None = None,
    groups: int = 1,
    eps: float = 0.0,
) -> Tensor:
    """Return ``s silu(gate)`` with the skip ``s = y + D x``, in float32, and RMSNorm over each group of
    channels; x and D may be None, for ``s = y``, and without ``silu`` the gate is its sigmoid.

    ``norm`` is ``none``, ``after_gate`` for norm(s silu(gate)) weight, ``before_gate`` for norm(s) weight
    silu(gate). x and gate may be slices of wider tensors.
    """
    assert (weight_C is None) == (norm == "none")
    parts = (None if part is None else part.float() for part in (y_BTC, x_BTC, gate_BTC, D_C, weight_C))
    return _Finish.apply(*parts, NORMS.index(norm), silu, groups, eps)


class _Finish(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        x: Tensor | None,
        gate: Tensor,
        D: Tensor | None,
        weight: Tensor | None,
        norm: int,
        silu: bool,
        groups: int,
        eps: float,
    ) -> Tensor:
        y, gate = y.contiguous(), rows(gate)
        x, D = None if x is None else rows(x), None if D is None else D.contiguous()
        length, channels = y.shape[:2].numel(), y.shape[2]
        ctx.settings = (
            length,
            channels,
            groups,
            norm,
            silu,
            torch.get_num_threads(),
            0 if x is None else x.stride(1),
            gate.stride(1),
            eps,
        )
        out = torch.empty_like(y)
        call("finish_forward", *ctx.settings, y, x, gate, D, weight, out)
        ctx.save_for_backward(y, x, gate, D, weight)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        y, x, gate, D, weight = ctx.saved_tensors
        d_out = gradients[0].contiguous()
        dy, dx, d_gate = (None if part is None else torch.empty_like(y) for part in (y, x, gate))
        dD, d_weight = (None if part is None else torch.empty_like(part) for part in (D, weight))
        call("finish_backward", *ctx.settings, y, x, gate, D, weight, d_out, dy, dx, d_gate, dD, d_weight)
        return dy, dx, d_gate, dD, d_weight, None, None, None, None


@implements("selective_scan")
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


@implements("ssd")
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
