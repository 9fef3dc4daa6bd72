"""The instruction set that the C++ kernels are compiled for, and how to force another.

    ARCHBENCH_ISA=avx2 archbench doctor                                      only the kernels
    python -m archbench.architectures.kernels.cpu.instruction_sets avx2 make compare

The environment variable ``ARCHBENCH_ISA`` sets the flags of the compiler: ``native`` (the default),
``avx512``, ``avx2`` or ``sse2``. PyTorch, MKL and oneDNN have separate variables, which they read when
PyTorch is imported; ``environment`` returns all of them, and the second command runs another one with them.
They emulate a processor with a smaller instruction set.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "ARCHBENCH_ISA"
NATIVE = "native"


@dataclass(frozen=True, kw_only=True)
class InstructionSet:
    """The compiler flag of an instruction set, and the settings that limit the libraries to it."""

    flag: str
    """Of the compiler."""
    processor: str
    """The flag in /proc/cpuinfo of a processor that has it."""
    pytorch: str
    """``ATEN_CPU_CAPABILITY``, which ``torch.backends.cpu.get_cpu_capability()`` returns in capitals."""
    mkl: str
    """``MKL_ENABLE_INSTRUCTIONS``."""
    onednn: str
    """``ONEDNN_MAX_CPU_ISA``."""


INSTRUCTION_SETS = {
    "avx512": InstructionSet(
        flag="-march=skylake-avx512", processor="avx512bw", pytorch="avx512", mkl="AVX512", onednn="ALL"
    ),
    "avx2": InstructionSet(
        flag="-march=haswell", processor="avx2", pytorch="avx2", mkl="AVX2", onednn="AVX2"
    ),
    "sse2": InstructionSet(
        flag="-march=x86-64", processor="sse2", pytorch="default", mkl="SSE4_2", onednn="SSE41"
    ),
}
"""Those that can be forced, all of x86-64. The kernels report which set they are compiled for: one of these,
``neon`` or ``other``."""


def forced() -> str:
    """Return the value of ``ARCHBENCH_ISA``, ``native`` where it is not set.

    Raises:
        ValueError: there is no such instruction set.
    """
    name = os.environ.get(VARIABLE) or NATIVE
    if name not in (NATIVE, *INSTRUCTION_SETS):
        raise ValueError(f"{VARIABLE}={name!r} must be one of {NATIVE}, {', '.join(INSTRUCTION_SETS)}")
    return name


def compiler_flag() -> str:
    """Return the compiler's flag for the instruction set. Raises OSError where the processor lacks it."""
    name = forced()
    if name == NATIVE:  # on ARM, the flag that both GCC and Clang know
        return "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
    if not runs_here(name):
        raise OSError(f"{VARIABLE}={name}, which this processor lacks")
    return INSTRUCTION_SETS[name].flag


def runs_here(name: str) -> bool:
    """Return True where the processor has an instruction set."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return INSTRUCTION_SETS[name].processor in flags


def environment(name: str) -> dict[str, str]:
    """Return the variables that limit our kernels and PyTorch's libraries, for a new process.

    Raises:
        ValueError: there is no such instruction set.
    """
    limited = INSTRUCTION_SETS.get(name)
    if limited is None:
        raise ValueError(f"instruction set {name!r} must be one of {', '.join(INSTRUCTION_SETS)}")
    return {
        VARIABLE: name,
        "ATEN_CPU_CAPABILITY": limited.pytorch,
        "MKL_ENABLE_INSTRUCTIONS": limited.mkl,
        "ONEDNN_MAX_CPU_ISA": limited.onednn,
    }


def check_libraries() -> None:
    """Raise RuntimeError where PyTorch is not limited to the instruction set that is forced."""
    import torch

    name, capability = forced(), torch.backends.cpu.get_cpu_capability()
    if name != NATIVE and capability != INSTRUCTION_SETS[name].pytorch.upper():
        raise RuntimeError(f"{VARIABLE}={name}, but PyTorch uses {capability}: set what {__spec__.name} sets")


def main(arguments: Sequence[str]) -> None:
    """Run a command with the variables of an instruction set."""
    if len(arguments) < 2 or arguments[0] not in INSTRUCTION_SETS:
        sys.exit(f"usage: python -m {__spec__.name} {{{','.join(INSTRUCTION_SETS)}}} COMMAND ...")
    name, *command = arguments
    if not runs_here(name):
        sys.exit(f"this processor lacks {name}")
    os.execvpe(command[0], command, os.environ | environment(name))


if __name__ == "__main__":
    main(sys.argv[1:])
