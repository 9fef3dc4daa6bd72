"""The C++ kernels for CPUs: compiled on first use and cached.

The ``.cpp`` sources of this folder do not depend on PyTorch: they are plain functions on
float32 memory, called through ctypes. Compiling them needs a few seconds and a C++ compiler. The
library is stored in ``$XDG_CACHE_HOME/archbench`` (else ``~/.cache/archbench``) as
``NAME-VERSION-COMPILER-CONTENT.so``. VERSION is a hash of the sources, the flags, the processor and the C
library, COMPILER one of the compiler: a change of any causes a new build. CONTENT is a hash of the file
itself: a changed file is built again, as loading it could end the process. Where no compiler works, the
library of another compiler is used. The flags contain the instruction set (``instruction_sets``).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from archbench.architectures.kernels.cpu.instruction_sets import compiler_flag

COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    "-std=c++17", "-O3", "-fno-math-errno", "-fPIC",
    # Each product that is added to something is one operation. For Zen 2 and 3 gcc would split some of them,
    # and the rounding of a row would depend on the number of rows in its batch.
    "-ffp-contract=fast", "--param=avoid-fma-max-bits=0",
)  # fmt: skip
SECONDS = 300
"""Time limit of the compiler."""


compiled_sources: dict[Path, bytes] = {}
"""Content of the sources of the libraries that this process uses; the files may change later."""

_off = ""


@contextmanager
def switched_off(reason: str) -> Iterator[None]:
    """Set ``problem`` to ``reason`` in the block, so that kernels only run where configured by name.

    Tensors without memory need it: the kernels would write to invalid addresses.
    """
    global _off
    previous, _off = _off, reason
    try:
        yield
    finally:
        _off = previous


def problem() -> str:
    """Return the reason why the kernels cannot run, empty where they can; build them if needed."""
    return _off or _build_problem()


@functools.cache
def _build_problem() -> str:
    """Return the reason why the kernels cannot be built or loaded on this machine."""
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


def shared_library(
    name: str, sources: list[Path], headers: list[Path], flags: Sequence[str], links: Sequence[str] = ()
) -> Path:
    """Return the file of a library, which is compiled unless it was before.

    Args:
        name: first part of the file name, before the hash of its version.
        headers: read by the sources; other included files are not part of the hash.
        flags: of the compiler.
        links: of the command that links.

    Raises:
        OSError, subprocess.SubprocessError: as ``library``.
    """
    version = hashlib.sha256(repr((flags, links, processor(), platform.libc_ver())).encode())
    for source in (*sources, *headers):
        content = source.read_bytes()
        compiled_sources.setdefault(source, content)
        version.update(repr((source.name, content)).encode())
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "archbench"
    stem = f"{name}-{version.hexdigest()[:24]}"
    try:
        program, compiler_hash = _compiler()
        own = f"{stem}-{compiler_hash}"
        return _intact(folder, own) or _new_library(program, sources, folder, own, flags, links)
    except (OSError, subprocess.SubprocessError):
        if (built := _intact(folder, stem)) is None:
            raise
        return built


def _compiler() -> tuple[str, str]:
    """Return the path of the C++ compiler, and a hash of path and version. Raises as ``library``."""
    compilers = [path for compiler in COMPILERS if (path := shutil.which(compiler))]
    if not compilers:
        raise OSError(f"no C++ compiler ({', '.join(COMPILERS)}) on the path")
    compiler = compilers[0]
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=SECONDS).stdout
    return compiler, hashlib.sha256(compiler.encode() + version).hexdigest()[:8]


def _intact(folder: Path, stem: str) -> Path | None:
    """Return a library whose name begins with ``stem`` and that is as it was built; None without one."""
    for path in sorted(folder.glob(f"{stem}-*.so")):
        with suppress(OSError):
            if path.is_file() and path.stem.rpartition("-")[2] == _content_hash(path):
                return path
    return None


def _content_hash(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()[:16]


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


def processor() -> str:
    """Return the model and instruction sets of the processor, which ``-march=native`` compiles for."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    telling = ("model name", "flags", "CPU part", "Features")
    return " ".join(sorted({line for line in lines if line.startswith(telling)}))


def _new_library(
    compiler: str, sources: list[Path], folder: Path, stem: str, flags: Sequence[str], links: Sequence[str]
) -> Path:
    """Return a library that was compiled now; one that cannot be loaded is not kept."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        built = Path(work, "built")
        _build(compiler, sources, built, flags, links)
        ctypes.CDLL(str(built))
        _sync(built)  # a crash of the machine would leave the name of a complete file with a part of it
        final = folder / f"{stem}-{_content_hash(built)}.so"
        built.replace(final)
        _sync(folder)
    return final


def _build(
    compiler: str, sources: list[Path], built: Path, flags: Sequence[str], links: Sequence[str]
) -> None:
    """Compile in a temporary folder and move the result to its final name at once: other processes that
    build at the same time do not interfere."""
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        # Two commands, so that flags of the compiler do not affect the linker: with -ffast-math it would
        # disable denormals in the complete process.
        _run([compiler, *flags, "-c", *map(str, sources)], folder)
        objects = [f"{source.stem}.o" for source in sources]
        _run([compiler, "-shared", "-pthread", *objects, *links, "-o", "built"], folder)
        Path(folder, "built").replace(built)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _run(command: list[str], folder: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        raise subprocess.SubprocessError(f"the C++ compiler fails: {done.stderr}")
