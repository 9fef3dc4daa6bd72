"""Mamba and Mamba-2 for one new token of each sequence, by the C++ kernels.

Shapes: B batch, D d_model, C channels, K taps, N state, H heads.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from architectures.kernels.cpu.decode.layer_spec import Description, Linear, Norm, Residual, call
from architectures.layers.context import Context
from architectures.layers.ssm.causal_conv1d import CausalConvolution


class _Convolution(ctypes.Structure):
    """As in ssm.cpp."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("channels", ctypes.c_int64),
        ("taps", ctypes.c_int64),
    )


class _Mamba(ctypes.Structure):
    """As in ssm.cpp."""

    _fields_ = (
        ("residual", Residual),
        ("input", Linear),
        ("select", Linear),
        ("dt", Linear),
        ("out", Linear),
        ("convolution", _Convolution),
        ("norms", Norm * 3),
        ("A", ctypes.c_void_p),
        ("D", ctypes.c_void_p),
        ("state", ctypes.c_int64),
    )


class _Mamba2(ctypes.Structure):
    """As in ssm.cpp."""

    _fields_ = (
        ("residual", Residual),
        ("input", Linear),
        ("out", Linear),
        ("convolution", _Convolution),
        ("norm", Norm),
        ("A", ctypes.c_void_p),
        ("D", ctypes.c_void_p),
        ("dt_bias", ctypes.c_void_p),
        ("heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("groups", ctypes.c_int64),
        ("state", ctypes.c_int64),
        ("before_gate", ctypes.c_int64),
        ("floor", ctypes.c_double),
        ("ceiling", ctypes.c_double),
    )


class RecurrentBranch:
    """A mixer whose state is a window of the convolution and the state of the recurrence."""

    def __init__(self, about: Description, kernel: str, fields: ctypes.Structure) -> None:
        self.about, self.kernel, self.fields = about, kernel, fields

    def __call__(self, read_BD: Tensor, stream_BD: Tensor, state: Any, context: Context) -> None:
        call(self.kernel, self.fields, read_BD, stream_BD, state["window"], state["ssm"])


def mamba_branch(
    about: Description,
    residual: Residual,
    *,
    linears: Sequence[nn.Linear],
    convolution: CausalConvolution,
    norms: Sequence[nn.Module | None],
    A_CN: Tensor,
    D_C: Tensor,
) -> RecurrentBranch:
    """``linears`` project in, select, make the time step, project out; ``norms`` are of what is selected."""
    fields = _Mamba(residual, *map(about.linear, linears), _described(about, convolution))
    fields.norms = (Norm * 3)(*map(about.norm, norms))
    fields.A, fields.D, fields.state = about.address(A_CN), about.address(D_C), A_CN.shape[1]
    return RecurrentBranch(about, "decode_mamba", fields)


def mamba2_branch(
    about: Description,
    residual: Residual,
    *,
    linears: Sequence[nn.Linear],
    convolution: CausalConvolution,
    norm: tuple[Tensor, float] | None,
    before_gate: bool,
    numbers_H: Sequence[Tensor],
    sizes: tuple[int, int, int, int],
    steps: tuple[float, float | None],
) -> RecurrentBranch:
    """``linears`` project in and out; ``norm`` is weight and eps; ``numbers_H`` are A, D and the bias of the
    time step, ``sizes`` heads, head_dim, groups and state, ``steps`` the least and largest time step."""
    fields = _Mamba2(residual, *map(about.linear, linears), _described(about, convolution))
    if norm is not None:
        fields.norm = Norm(about.address(norm[0]), None, norm[1], 1)
    fields.A, fields.D, fields.dt_bias = map(about.address, numbers_H)
    fields.heads, fields.head_dim, fields.groups, fields.state = sizes
    fields.before_gate, fields.floor = before_gate, steps[0]
    fields.ceiling = math.inf if steps[1] is None else steps[1]
    return RecurrentBranch(about, "decode_mamba2", fields)


def _described(about: Description, convolution: CausalConvolution) -> _Convolution:
    weight_CK, bias_C = convolution.weight_CK, convolution.bias_C
    return _Convolution(about.address(weight_CK), about.address(bias_C), *weight_CK.shape)
