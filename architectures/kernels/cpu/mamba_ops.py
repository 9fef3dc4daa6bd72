"""Convolution, gate and norm around the scans of Mamba in C++, one pass over memory each: float32 on a CPU.

The result does not depend on the number of threads, to the last bit.

Shapes: B batch, T length, C channels, K taps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from architectures.kernels.cpu.build import call, rows

NORMS = ("none", "after_gate", "before_gate")
"""In the order of their indices in the kernel."""


def cpp_convolution(
    x_BTC: Tensor, weight_CK: Tensor, bias_C: Tensor | None, positions_BT: Tensor | None
) -> Tensor:
    """Return SiLU of the causal depthwise convolution; see ``CausalConvolution``."""
    weight_CK, bias_C = weight_CK.float(), None if bias_C is None else bias_C.float()
    if positions_BT is not None:
        positions_BT = positions_BT.expand(x_BTC.shape[:2]).contiguous()
    return _Convolution.apply(x_BTC.float(), weight_CK, bias_C, positions_BT).to(x_BTC.dtype)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, positions: Tensor | None) -> Tensor:
        x, weight = rows(x), weight.contiguous()
        y = x.new_empty(x.shape)
        settings = (*x.shape, weight.shape[1], torch.get_num_threads(), x.stride(1))
        call("convolution_forward", *settings, x, weight, bias, positions, y)
        ctx.save_for_backward(x, weight, bias, positions)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, positions = ctx.saved_tensors
        dy, dx = gradients[0].contiguous(), x.new_empty(x.shape)
        d_weight, d_bias = torch.empty_like(weight), weight.new_empty(weight.shape[0])
        settings = (*x.shape, weight.shape[1], torch.get_num_threads(), x.stride(1))
        call("convolution_backward", *settings, x, weight, bias, positions, dy, dx, d_weight, d_bias)
        return dx, d_weight, None if bias is None else d_bias, None


def cpp_finish(
    y_BTC: Tensor,
    x_BTC: Tensor,
    gate_BTC: Tensor,
    D_C: Tensor,
    *,
    norm: str = "none",
    weight_C: Tensor | None = None,
    groups: int = 1,
    eps: float = 0.0,
) -> Tensor:
    """Return ``s silu(gate)`` with the skip ``s = y + D x``, in float32, and RMSNorm over each group of
    channels.

    ``norm`` is ``none``, ``after_gate`` for norm(s silu(gate)) weight, ``before_gate`` for norm(s) weight
    silu(gate). x and gate may be slices of wider tensors.
    """
    assert (weight_C is None) == (norm == "none")
    parts = (part.float() for part in (y_BTC, x_BTC, gate_BTC, D_C))
    weight_C = None if weight_C is None else weight_C.float()
    return _Finish.apply(*parts, weight_C, NORMS.index(norm), groups, eps)


class _Finish(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        x: Tensor,
        gate: Tensor,
        D: Tensor,
        weight: Tensor | None,
        norm: int,
        groups: int,
        eps: float,
    ) -> Tensor:
        y, x, gate, D = y.contiguous(), rows(x), rows(gate), D.contiguous()
        length, channels = y.shape[:2].numel(), y.shape[2]
        ctx.settings = (
            length,
            channels,
            groups,
            norm,
            torch.get_num_threads(),
            x.stride(1),
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
        dy, dx, d_gate = (torch.empty_like(y) for _ in range(3))
        dD, d_weight = torch.empty_like(D), None if weight is None else torch.empty_like(weight)
        call("finish_backward", *ctx.settings, y, x, gate, D, weight, d_out, dy, dx, d_gate, dD, d_weight)
        return dy, dx, d_gate, dD, d_weight, None, None, None
