"""Memory of the process: its peak, and freed memory that is kept for the next tensors."""

from __future__ import annotations

import ctypes
import functools
import gc
import platform
import resource
import subprocess
from pathlib import Path

import torch

from archbench.architectures.shared_library import shared_library

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Names of settings of the C library (malloc.h)."""
LARGE = 2**25
"""Bytes from which a block is a separate mapping: the highest value to which glibc raises this limit."""


def keep_freed_memory() -> None:
    """Lets this process keep the memory that it frees, for its next tensors, until ``reset_peak_memory``.

    By default the C library returns the free end of its heap, and each step has page faults for it again.
    Blocks of ``LARGE`` bytes are not in the heap: our allocator caches them where it can be built.
    """
    if platform.libc_ver()[0] == "glibc":
        _libc().mallopt(MMAP_THRESHOLD, LARGE)
        _libc().mallopt(TRIM_THRESHOLD, 2**31 - 1)
        install_caching_allocator(LARGE)


def reset_peak_memory() -> None:
    """Return freed memory to the system and start a new peak, so that runs of one process stay apart."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    release_cached_blocks()
    try:
        _libc().malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return  # not Linux: the peak is then that of the complete process


@functools.cache
def _libc() -> ctypes.CDLL:
    """The C library, which every process of Python has loaded."""
    return ctypes.CDLL(None)


def peak_memory(device: torch.device) -> int:
    """Peak bytes since the run began: of the GPU's allocator, or of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    except (OSError, StopIteration):
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


SOURCE = Path(__file__).with_name("caching_allocator.cpp")
FLAGS = ("-std=c++20", "-O2", "-fPIC")


def install_caching_allocator(large: int) -> None:
    """Keep blocks of at least ``large`` bytes for the next tensors; only the first call of a process counts.

    glibc maps every block above 32 MiB again at each allocation and unmaps it when it is freed, so that each
    training step causes page faults for all its pages. The allocator in C++ replaces that of PyTorch and
    caches such blocks. Cached and used blocks together never exceed the peak of used blocks. Where it cannot
    be compiled, only the speed differs.
    """
    global _installed
    if _installed is None and not allocator_problem():
        _installed = _allocator_library()
        _installed.install_caching_allocator(ctypes.c_int64(large))


def release_cached_blocks() -> None:
    """Return cached blocks to the system, and measure the peak of used blocks from now on."""
    if _installed is not None:
        _installed.release_kept_blocks()


def bytes_cached() -> int:
    """Return the bytes of blocks that no tensor uses."""
    return 0 if _installed is None else int(_installed.bytes_kept())


@functools.cache
def allocator_problem() -> str:
    """Return the reason why the allocator cannot be built or loaded here, empty where it can."""
    if platform.libc_ver()[0] != "glibc":
        return "the C library is not glibc"
    try:
        _allocator_library()
    except (OSError, subprocess.SubprocessError) as error:
        return " ".join(str(error).split())[:300] or type(error).__name__
    return ""


_installed: ctypes.CDLL | None = None


@functools.cache
def _allocator_library() -> ctypes.CDLL:
    """Return the library of the allocator. Raises what ``shared_library`` does."""
    pytorch = Path(torch.__file__).parent
    flags = (*FLAGS, f"-I{pytorch / 'include'}")
    links = (f"-L{pytorch / 'lib'}", "-lc10")
    built = shared_library(f"allocator-{torch.__version__}", [SOURCE], [], flags, links)
    library = ctypes.CDLL(str(built))
    library.bytes_kept.restype = ctypes.c_int64
    return library
