"""Routed experts for one new token of each sequence, by the C++ kernels.

Shapes: B batch, D d_model, X experts, F hidden width of an expert.
"""

from __future__ import annotations

import ctypes
from typing import Any

from torch import Tensor, nn

from architectures.kernels.cpu.decode.layer_spec import Description, Linear, Residual, call
from architectures.kernels.cpu.decode.transformer import ACTIVATIONS
from architectures.layers.context import Context


class _Experts(ctypes.Structure):
    """As in moe.cpp."""

    _fields_ = (
        ("residual", Residual),
        ("router", Linear),
        ("selection", ctypes.c_void_p),
        ("choices", ctypes.c_int64),
        ("sigmoid", ctypes.c_int64),
        ("renormalise", ctypes.c_int64),
        ("scaling", ctypes.c_double),
        ("gate", Linear),
        ("up", Linear),
        ("down", Linear),
        ("shared_gate", Linear),
        ("shared_up", Linear),
        ("shared_down", Linear),
        ("shared_share", Linear),
        ("activation", ctypes.c_int64),
    )


class ExpertsBranch:
    """Routed experts, and shared ones beside them."""

    def __init__(
        self,
        about: Description,
        residual: Residual,
        *,
        router_XD: Tensor,
        selection_X: Tensor | None,
        choices: int,
        sigmoid: bool,
        renormalise: bool,
        scaling: float,
        stacks: tuple[Tensor | None, Tensor, Tensor],
        shared: tuple[nn.Linear | None, ...],
        activation: str,
    ) -> None:
        """``stacks`` are the matrices of all experts: gate, up, down. ``shared`` are those of the shared ones
        and what says how much these count."""
        self.about = about
        routing = (about.address(selection_X), choices, sigmoid, renormalise, scaling)
        linears = (*(_first(about, stack) for stack in stacks), *map(about.linear, shared))
        number = ACTIVATIONS.index(activation)
        self.fields = _Experts(residual, about.matrix(router_XD), *routing, *linears, number)

    def __call__(self, read_BD: Tensor, stream_BD: Tensor, state: Any, context: Context) -> None:
        call("decode_experts", self.fields, read_BD, stream_BD)


def _first(about: Description, stack: Tensor | None) -> Linear:
    """The matrix of the first expert; the others lie behind it."""
    return Linear() if stack is None else Linear(about.address(stack), None, *stack.shape[1:])
