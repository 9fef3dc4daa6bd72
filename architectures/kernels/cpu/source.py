"""The C++ kernels as a source of fast paths."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from archbench.architectures import fast_paths
from archbench.architectures.fast_paths import Scan, implements
from archbench.architectures.kernels.cpu import build, where


def problem() -> str:
    """Return the reason why the kernels cannot run, empty where they can; build them if needed."""
    return build.problem()


def check() -> None:
    """Raise ValueError where the kernels cannot be built."""
    if reason := fast_paths.problem():
        raise ValueError(
            f"scan=cpp cannot be built here ({reason}): install a C++ compiler such as g++, or set scan=auto"
        )


def unable(scan: Scan) -> str:
    """Return the reason why the kernels cannot compute a scan; empty if they can."""
    device, dtype = scan.operand.device.type, scan.operand.dtype
    if device == "cpu" and dtype != torch.float64:
        return ""
    return f"{dtype} on {device} (only float32 or less on cpu)"


def preferred(scan: Scan) -> bool:
    """Return True where a scan is faster than PyTorch's."""
    if fast_paths.problem():
        return False
    trained = torch.is_grad_enabled() and scan.operand.requires_grad
    return where.faster(scan.kernel, scan.operand, trained=trained)


@implements("faster")
def faster(kernel: str, x: Tensor, *, trained: bool) -> bool:
    """See ``where.faster``."""
    return where.faster(kernel, x, trained=trained)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The library of kernels that a process has loaded."""

    instruction_set: str
    compiler: str
    """Name and version."""


@implements("loaded")
def loaded() -> Loaded | None:
    """Return what was loaded; None if nothing was."""
    if not build.is_loaded():
        return None
    return Loaded(instruction_set=build.instruction_set(), compiler=build.compiler())


@implements("measure")
def measure() -> None:
    """Measure the kernels on an instruction set without a table, unless this machine has before."""
    if not build.problem() and build.instruction_set() not in where.SMALLEST:
        from archbench.architectures.kernels.cpu.measure import (
            measure_unless_known,  # imports what it measures
        )

        measure_unless_known()


@implements("description")
def description() -> list[str]:
    """Return lines on the instruction set and, where they were measured here, the speed of the kernels."""
    name = build.instruction_set()
    if name in where.SMALLEST:
        return [f"C++ kernels are built for {name}, and used where they were measured to be faster"]
    measure()
    lines = [f"C++ kernels are built for {name}; used where this machine measured {where.GAIN} or more:"]
    for kernel, ratios in where.measured_here().items():
        speedups = ", ".join(f"{ratio:.2f} in {column}" for column, ratio in ratios.items())
        lines.append(f"  {kernel}: {speedups} times as fast as PyTorch")
    return lines
