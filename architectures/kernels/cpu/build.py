"""The C++ kernels for CPUs: compiled on first use and cached.

The ``.cpp`` sources of this folder do not depend on PyTorch: they are plain functions on
float32 memory, called through ctypes. Compiling them needs a few seconds and a C++ compiler. The
library is a file of ``architectures.shared_library``. The flags contain the instruction set
(``instruction_sets``).
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from archbench.architectures.kernels.cpu.instruction_sets import compiler_flag
from archbench.architectures.shared_library import shared_library

FLAGS = (
    "-std=c++17", "-O3", "-fno-math-errno", "-fPIC",
    # Each product that is added to something is one operation. For Zen 2 and 3 gcc would split some of them,
    # and the rounding of a row would depend on the number of rows in its batch.
    "-ffp-contract=fast", "--param=avoid-fma-max-bits=0",
)  # fmt: skip


@functools.cache
def problem() -> str:
    """Return the reason why the kernels cannot be built or loaded on this machine, empty where they can."""
    try:
        library()
    except (OSError, subprocess.SubprocessError) as error:
        return " ".join(str(error).split())[:300] or type(error).__name__
    return ""


@functools.cache
def library() -> ctypes.CDLL:
    """Return the library of kernels.

    Raises:
        OSError: there is no compiler, or no folder to keep the library in.
        subprocess.SubprocessError: the compiler fails.
    """
    kernels = ctypes.CDLL(str(library_file()))
    kernels.instruction_set.restype = kernels.compiler.restype = ctypes.c_char_p
    return kernels


def library_file() -> Path:
    """Return the file of the library, which is compiled unless it was before. Raises as ``library``."""
    folder = Path(__file__).parent
    flags = (*FLAGS, compiler_flag())
    return shared_library("kernels", sorted(folder.rglob("*.cpp")), sorted(folder.rglob("*.h")), flags)


@functools.cache
def instruction_set() -> str:
    """Return the instruction set that the kernels are compiled for: avx512, avx2, sse2, neon or other."""
    name: bytes = library().instruction_set()
    return name.decode()


def compiler() -> str:
    """Return name and version of the compiler that the kernels were compiled with."""
    name: bytes = library().compiler()
    return name.decode()


def is_loaded() -> bool:
    """Return True if this process has loaded the kernels."""
    return library.cache_info().currsize > 0


Argument = Tensor | int | float | ctypes.Structure | None
"""Of a kernel: tensors and structures are passed by their address, None as the null pointer."""


def call(name: str, *arguments: Argument) -> int:
    """Call a kernel. The caller sees to precision, layout and lifetime of the tensors."""
    kernel = _kernel(name, *map(type, arguments))
    return kernel(*[x.data_ptr() if isinstance(x, Tensor) else x for x in arguments])


@functools.cache
def _kernel(name: str, *types: type) -> Callable[..., int]:
    """Return a kernel with arguments of these types."""
    ctypes_of: dict[type, Any] = {int: ctypes.c_int64, bool: ctypes.c_int64, float: ctypes.c_double}
    ctypes_of |= {x: ctypes.POINTER(x) for x in types if issubclass(x, ctypes.Structure)}
    prototype = ctypes.CFUNCTYPE(ctypes.c_int64, *(ctypes_of.get(x, ctypes.c_void_p) for x in types))
    return prototype((name, library()))


def rows(x_BTC: Tensor) -> Tensor:
    """Return the tensor with rows ``stride(1)`` apart; a slice of a wider tensor is not copied."""
    length = x_BTC.shape[1]
    if length > 1 and x_BTC.stride(2) == 1 and x_BTC.stride(0) == length * x_BTC.stride(1):
        return x_BTC
    return x_BTC.contiguous()
