"""Keeping large blocks of memory for the next tensors on a CPU, by an allocator in C++.

glibc maps every block above 32 MiB again at each allocation and unmaps it when it is freed, so that each
training step causes page faults for all its pages. This module replaces PyTorch's allocator, once in a
process, by one that caches such blocks. Cached and used blocks together never exceed the peak of used blocks.
Where it cannot be compiled, only the speed differs.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import subprocess
from pathlib import Path

import torch

from architectures.kernels.cpu.build import shared_library

SOURCE = Path(__file__).with_suffix(".cpp")
FLAGS = ("-std=c++20", "-O2", "-fPIC")


def install(large: int) -> None:
    """Keep blocks of at least ``large`` bytes from now on; only the first call of a process counts."""
    global _installed
    if _installed is None and not problem():
        _installed = _library()
        _installed.install_caching_allocator(ctypes.c_int64(large))


def release() -> None:
    """Return cached blocks to the system, and measure the peak of used blocks from now on."""
    if _installed is not None:
        _installed.release_kept_blocks()


def bytes_kept() -> int:
    """Return the bytes of blocks that no tensor uses."""
    return 0 if _installed is None else int(_installed.bytes_kept())


@functools.cache
def problem() -> str:
    """Return the reason why the allocator cannot be built or loaded here, empty where it can."""
    if platform.libc_ver()[0] != "glibc":
        return "the C library is not glibc"
    try:
        _library()
    except (OSError, subprocess.SubprocessError) as error:
        return " ".join(str(error).split())[:300] or type(error).__name__
    return ""


_installed: ctypes.CDLL | None = None


@functools.cache
def _library() -> ctypes.CDLL:
    """Return the library of the allocator. Raises what ``shared_library`` does."""
    pytorch = Path(torch.__file__).parent
    flags = (*FLAGS, f"-I{pytorch / 'include'}")
    links = (f"-L{pytorch / 'lib'}", "-lc10")
    built = shared_library(f"allocator-{torch.__version__}", [SOURCE], [], flags, links)
    library = ctypes.CDLL(str(built))
    library.bytes_kept.restype = ctypes.c_int64
    return library
