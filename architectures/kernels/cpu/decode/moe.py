"""Routed experts for one new token of each sequence, by the C++ kernels.

Shapes: B batch, D d_model, X experts, F hidden width of an expert.
"""

from __future__ import annotations

import ctypes
from typing import Any

from torch import Tensor

from architectures.kernels.cpu.decode.layer_spec import (
    DecodeSpec,
    LinearSpec,
    ResidualSpec,
    UnsupportedError,
    call,
)
from architectures.kernels.cpu.decode.transformer import ACTIVATIONS
from architectures.layers.context import Context
from architectures.layers.moe.experts import Experts


class _Experts(ctypes.Structure):
    """The structure of the same name in moe.cpp."""

    _fields_ = (
        ("residual", ResidualSpec),
        ("router", LinearSpec),
        ("selection", ctypes.c_void_p),
        ("choices", ctypes.c_int64),
        ("sigmoid", ctypes.c_int64),
        ("renormalise", ctypes.c_int64),
        ("scaling", ctypes.c_double),
        ("gate", LinearSpec),
        ("up", LinearSpec),
        ("down", LinearSpec),
        ("shared_gate", LinearSpec),
        ("shared_up", LinearSpec),
        ("shared_down", LinearSpec),
        ("shared_share", LinearSpec),
        ("activation", ctypes.c_int64),
    )


class ExpertsBranch:
    """Routed experts, and shared experts."""

    def __init__(self, spec: DecodeSpec, fields: _Experts) -> None:
        self.spec, self.fields = spec, fields

    def __call__(self, read_BD: Tensor, stream_BD: Tensor, state: Any, context: Context) -> None:
        call("decode_experts", self.fields, read_BD, stream_BD)


def experts_branch(layer: Experts, spec: DecodeSpec, residual: ResidualSpec) -> ExpertsBranch:
    """Return the branch of routed experts.

    Raises:
        UnsupportedError: the routing depends on other tokens, is observed, or leaves this process.
    """
    c, router, shared = layer.config, layer.router, layer.shared
    limited = c.choice == "expert" or c.capacity is not None or c.num_groups > 1
    if c.bias or layer.activation.name not in ACTIVATIONS:
        raise UnsupportedError("biases and activations of experts")
    if limited or c.dispatch != "auto" or layer.exchange is not None or layer.watcher is not None:
        raise UnsupportedError("the choice of experts")
    selection_X = None if c.bias_rate is None else router.selection_X
    stacks = (layer.gate_XFD, layer.up_XFD, layer.down_XDF)
    linears = (None,) * 3 if shared is None else (shared.gate, shared.up, shared.down)
    fields = _Experts(
        residual,
        spec.matrix(router.weight),
        spec.address(selection_X),
        c.experts_per_token,
        c.score == "sigmoid",
        c.renormalise,
        c.scaling,
        *(_first(spec, stack) for stack in stacks),
        *map(spec.linear, (*linears, layer.shared_gate)),
        ACTIVATIONS.index(layer.activation.name),
    )
    return ExpertsBranch(spec, fields)


def _first(spec: DecodeSpec, stack: Tensor | None) -> LinearSpec:
    """Return the matrix of the first expert; those of all other experts follow it in memory."""
    return LinearSpec() if stack is None else LinearSpec(spec.address(stack), None, *stack.shape[1:])
