"""One new token of each sequence through a residual branch, by the C++ kernels: float32 on a CPU.

A layer that can be decoded so describes itself once for a decoding state: the numbers and addresses of its
weights, as the kernels want them. A step is then one call for each branch, whatever the layer is made of.

The result does not depend on the number of threads, nor on the other rows, to the last bit. A text can
differ from one written by PyTorch where two tokens are almost equally likely: sums have another order.

Shapes: B batch, D d_model, H query heads, R rotated dimensions.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from architectures.kernels.cpu.build import library
from architectures.layers.context import Context
from architectures.layers.normalization import OffsetRMSNorm

ROWS = 16
"""With more sequences than this the matrix products of PyTorch are faster."""

Value = TypeVar("Value")
Step = Callable[[Tensor, Any, Context], Tensor]
"""The stream (B, T, D) after a block, given that before it, the state of the layer and the context."""


class UnsupportedError(Exception):
    """A layer cannot be decoded by these kernels; the reason."""


class Branch(Protocol):
    """A residual branch for one token: adds to ``stream_BD`` what is made of ``read_BD``."""

    def __call__(self, read_BD: Tensor, stream_BD: Tensor, state: Any, context: Context) -> None: ...


class NormSpec(ctypes.Structure):
    """As in decode.h."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("eps", ctypes.c_double),
        ("kind", ctypes.c_int64),
    )


class LinearSpec(ctypes.Structure):
    """As in decode.h."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("outputs", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
    )


class ResidualSpec(ctypes.Structure):
    """As in decode.h."""

    _fields_ = (("before", NormSpec), ("after", NormSpec), ("post", ctypes.c_int64))


class DecodeSpec:
    """What the layers of one decoding state tell the kernels, and the tensors whose addresses they hold.

    Weights may change in place; a model that is moved or cast needs a new state.
    """

    def __init__(self, room: int, score_bias: nn.Module | None = None) -> None:
        """``room`` is for how many tokens; ``score_bias`` is that of the model's attention."""
        self.room, self.score_bias = room, score_bias
        self._kept: list[Tensor] = []
        self._made: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """``make()`` the first time, the same value for every later layer that asks with ``key``."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def address(self, tensor: Tensor | None) -> int | None:
        """Where the numbers of a tensor lie, which from now on lives as long as this; None for None."""
        if tensor is None:
            return None
        plain = type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == "cpu"
        if not plain or tensor.dtype != torch.float32 or not tensor.is_contiguous():
            raise UnsupportedError("weights that are not plain float32 on a CPU")
        self._kept.append(tensor.detach())
        return tensor.data_ptr()

    def norm(self, module: nn.Module | None) -> NormSpec:
        """A norm; none for None."""
        if module is None or type(module) is nn.Identity:
            return NormSpec()
        if type(module) is nn.LayerNorm:
            return NormSpec(self.address(module.weight), self.address(module.bias), module.eps, 2)
        if type(module) is OffsetRMSNorm:
            return NormSpec(self.address(1 + module.weight.detach()), None, module.eps, 1)
        if not isinstance(module, nn.RMSNorm) or module.eps is None:
            raise UnsupportedError(f"the norm {type(module).__name__}")
        return NormSpec(self.address(module.weight), None, module.eps, 1)

    def linear(self, module: nn.Module | None) -> LinearSpec:
        """A linear layer; one of no outputs for None."""
        if module is None:
            return LinearSpec()
        if type(module) is not nn.Linear:
            raise UnsupportedError(f"the layer {type(module).__name__}")
        weight, bias = self.address(module.weight), self.address(module.bias)
        return LinearSpec(weight, bias, module.out_features, module.in_features)

    def matrix(self, weight: Tensor) -> LinearSpec:
        """A product with a matrix (outputs, inputs)."""
        return LinearSpec(self.address(weight), None, *weight.shape)


def call(name: str, fields: ctypes.Structure, read_BD: Tensor, stream_BD: Tensor, *more: Any) -> None:
    """Calls the kernel of a branch."""
    arguments = [
        part.data_ptr() if isinstance(part, Tensor) else part for part in (read_BD, stream_BD, *more)
    ]
    kernel = _kernel(name, 3 + len(arguments))
    kernel(ctypes.addressof(fields), read_BD.shape[0], torch.get_num_threads(), *arguments)


@functools.cache
def _kernel(name: str, arguments: int) -> Callable[..., Any]:
    """A kernel whose arguments are all addresses or integers of 64 bits, which ctypes need not be told."""
    kernel = getattr(library(), name)
    kernel.argtypes = [ctypes.c_void_p] * arguments
    return kernel
