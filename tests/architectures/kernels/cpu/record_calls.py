"""A pytest plugin that writes every call of a C++ kernel to the file ``$RECORDED_CALLS``, for ``replay.cpp``.

A call is its name and its arguments. An argument is an integer, a floating-point number or a piece of memory,
which is written as it was before the call and after it. The structures of the decode kernels contain
addresses: a piece of memory has a list of offsets that are to hold the addresses of other pieces.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from archbench.architectures.kernels.cpu import build, delta_ops, mamba_ops, transformer_ops
from archbench.architectures.kernels.cpu.decode import dispatch

LARGEST = 2**17
"""Bytes of memory above which a call is not recorded."""
NULL = 2**32 - 1
Piece = tuple[int, bytes, str]
"""Address, memory and type of its numbers: f for float32, h for bfloat16, x for anything else."""


class Call:
    """The arguments of one call, and the memory they point to."""

    def __init__(self) -> None:
        self.tensors: dict[int, Tensor] = {}
        self.structures: dict[int, ctypes.Structure] = {}
        self.pieces: list[int] = []
        self.arguments: list[bytes] = []

    def add(self, value: Any) -> None:
        """Add an argument as ``build.call`` passes it."""
        if isinstance(value, Tensor | ctypes.Structure):
            self.arguments.append(b"p" + struct.pack("<I", self.piece(value)))
        elif isinstance(value, float):
            self.arguments.append(b"d" + struct.pack("<d", value))
        elif value is None:
            self.arguments.append(b"p" + struct.pack("<I", NULL))
        else:
            self.arguments.append(b"i" + struct.pack("<q", int(value)))

    def piece(self, value: Tensor | ctypes.Structure) -> int:
        """Return the number of a piece of memory."""
        if isinstance(value, Tensor):
            address = value.data_ptr()
            self.tensors[address] = value
        else:
            address = ctypes.addressof(value)
            self.structures[address] = value
            for _, inner in pointers(value):
                if inner is not None:
                    self.piece(ADDRESSED[inner])
        if address not in self.pieces:
            self.pieces.append(address)
        return self.pieces.index(address)

    def memory(self) -> list[Piece]:
        """Return the pieces as they are now."""
        return [
            (address, bytes(self.structures[address]), "x")
            if address in self.structures
            else (address, *memory_of(self.tensors[address]))
            for address in self.pieces
        ]

    def written(self, name: str, before: list[Piece], after: list[Piece]) -> bytes:
        """Return the call as it stands in the file."""
        parts = [struct.pack("<I", len(name)), name.encode(), struct.pack("<I", len(self.arguments))]
        parts += [*self.arguments, struct.pack("<I", len(before))]
        for (address, memory, kind), (_, result, _) in zip(before, after, strict=True):
            parts += [kind.encode(), struct.pack("<Q", len(memory)), memory, result]
            places = pointers(self.structures[address]) if address in self.structures else []
            places = [(offset, inner) for offset, inner in places if inner is not None]
            parts.append(struct.pack("<I", len(places)))
            parts += [struct.pack("<QI", offset, self.pieces.index(inner)) for offset, inner in places]
        return b"".join(parts)


def memory_of(tensor: Tensor) -> tuple[bytes, str]:
    """Return the memory of a tensor from its first to its last number, and the type."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    count = 1 + sum((size - 1) * step for size, step in steps) if tensor.numel() else 0
    numbers = tensor.detach().as_strided((count,), (1,))
    kind = {torch.float32: "f", torch.bfloat16: "h"}.get(tensor.dtype, "x")
    return ctypes.string_at(numbers.data_ptr(), count * tensor.element_size()), kind


def pointers(structure: ctypes.Structure, start: int = 0) -> list[tuple[int, int | None]]:
    """Return offset and value of every address in a structure."""
    found: list[tuple[int, int | None]] = []
    for name, kind, *_ in structure._fields_:
        value, offset = getattr(structure, name), start + getattr(type(structure), name).offset
        if kind is ctypes.c_void_p:
            found.append((offset, value))
        for number, inner in enumerate(value if isinstance(value, ctypes.Array) else [value]):
            if isinstance(inner, ctypes.Structure):
                found += pointers(inner, offset + number * ctypes.sizeof(inner))
    return found


ADDRESSED: dict[int, Tensor] = {}
"""The weights whose addresses are in structures."""


def pytest_configure() -> None:
    """Put a recorder between the operations and the kernels."""
    path = Path(os.environ["RECORDED_CALLS"])

    def recorded(name: str, *arguments: Any) -> Any:
        one = Call()
        for value in arguments:
            one.add(value)
        before = one.memory()
        result = plain(name, *arguments)
        if sum(len(memory) for _, memory, _ in before) <= LARGEST:
            with path.open("ab") as file:
                file.write(one.written(name, before, one.memory()))
        return result

    def address(self: dispatch.DecodeSpec, tensor: Tensor | None) -> int | None:
        value = original(self, tensor)
        if value is not None and tensor is not None:
            ADDRESSED[value] = tensor.detach()
        return value

    original, plain = dispatch.DecodeSpec.address, build.call
    patch = pytest.MonkeyPatch()
    patch.setattr(dispatch.DecodeSpec, "address", address)
    for module in (build, delta_ops, mamba_ops, transformer_ops):
        patch.setattr(module, "call", recorded)
