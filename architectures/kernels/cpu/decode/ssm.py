"""Mamba and Mamba-2 for one new token of each sequence, by the C++ kernels.

Shapes: B batch, D d_model, C channels, K taps, N state, H heads.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any

from torch import Tensor

from archbench.architectures.fast_paths import implements
from archbench.architectures.kernels.cpu.decode.dispatch import (
    DecodeSpec,
    LinearSpec,
    NormSpec,
    ResidualSpec,
    call,
)
from archbench.architectures.layers.block import UnsupportedError

if TYPE_CHECKING:
    from archbench.architectures.layers.context import Context
    from archbench.architectures.layers.ssm.causal_conv1d import CausalConvolution
    from archbench.architectures.mixers.mamba import SelectiveConfig, SelectiveSSM
    from archbench.architectures.mixers.mamba2 import SSD, SSDConfig


class _Convolution(ctypes.Structure):
    """The structure of the same name in ssm.cpp."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("channels", ctypes.c_int64),
        ("taps", ctypes.c_int64),
    )


class _Mamba(ctypes.Structure):
    """The structure of the same name in ssm.cpp."""

    _fields_ = (
        ("residual", ResidualSpec),
        ("input", LinearSpec),
        ("select", LinearSpec),
        ("dt", LinearSpec),
        ("out", LinearSpec),
        ("convolution", _Convolution),
        ("norms", NormSpec * 3),
        ("A", ctypes.c_void_p),
        ("D", ctypes.c_void_p),
        ("state", ctypes.c_int64),
    )


class _Mamba2(ctypes.Structure):
    """The structure of the same name in ssm.cpp."""

    _fields_ = (
        ("residual", ResidualSpec),
        ("input", LinearSpec),
        ("out", LinearSpec),
        ("convolution", _Convolution),
        ("norm", NormSpec),
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
    """A mixer with the window of a convolution and the state of a recurrence as its state."""

    def __init__(self, spec: DecodeSpec, kernel: str, fields: ctypes.Structure) -> None:
        self.spec, self.kernel, self.fields = spec, kernel, fields

    def __call__(self, read_BD: Tensor, stream_BD: Tensor, state: Any, context: Context) -> None:
        call(self.kernel, self.fields, read_BD, stream_BD, state["window"], state["ssm"])


@implements("decode mamba")
def mamba_branch(layer: SelectiveSSM, spec: DecodeSpec, residual: ResidualSpec) -> RecurrentBranch:
    """Return the branch of a Mamba mixer. Raises UnsupportedError for the settings without a kernel."""
    check_scan(layer.config)
    linears = (layer.input, layer.select, layer.dt, layer.out)
    norms = [None] * 3 if layer.norms is None else layer.norms
    fields = _Mamba(residual, *map(spec.linear, linears), _convolution(spec, layer.convolution))
    fields.norms = (NormSpec * 3)(*map(spec.norm, norms))
    fields.A, fields.D = spec.address(-layer.A_log_CN.detach().exp()), spec.address(layer.D_C)
    fields.state = layer.A_log_CN.shape[1]
    return RecurrentBranch(spec, "decode_mamba", fields)


@implements("decode mamba2")
def mamba2_branch(layer: SSD, spec: DecodeSpec, residual: ResidualSpec) -> RecurrentBranch:
    """Return the branch of a Mamba-2 mixer. Raises UnsupportedError for the settings without a kernel."""
    c = layer.config
    check_scan(c)
    fields = _Mamba2(
        residual, *map(spec.linear, (layer.input, layer.out)), _convolution(spec, layer.convolution)
    )
    if layer.norm is not None:
        fields.norm = NormSpec(spec.address(layer.norm.weight), None, layer.norm.eps, 1)
    fields.A, fields.D = spec.address(-layer.A_log_H.detach().exp()), spec.address(layer.D_H)
    fields.dt_bias = spec.address(layer.dt_bias_H)
    fields.heads, fields.head_dim = c.num_heads, layer.channels // c.num_heads
    fields.groups, fields.state = c.num_groups, layer.d_state
    fields.before_gate, fields.floor = c.norm == "before_gate", c.dt_floor
    fields.ceiling = math.inf if c.dt_ceiling is None else c.dt_ceiling
    return RecurrentBranch(spec, "decode_mamba2", fields)


def check_scan(config: SelectiveConfig | SSDConfig) -> None:
    """Raise UnsupportedError if another scan or an unsupported decay is configured."""
    if config.scan not in ("auto", "cpp") or config.negative_eigenvalues:
        raise UnsupportedError("the path of the scan")


def _convolution(spec: DecodeSpec, convolution: CausalConvolution | None) -> _Convolution:
    if convolution is None:
        raise UnsupportedError("a mixer without a convolution")
    weight_CK, bias_C = convolution.weight_CK, convolution.bias_C
    return _Convolution(spec.address(weight_CK), spec.address(bias_C), *weight_CK.shape)
