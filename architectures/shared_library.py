"""Compile C++ sources into a shared library, once for each processor and compiler.

The library is stored in ``$XDG_CACHE_HOME/archbench`` (else ``~/.cache/archbench``) as
``NAME-VERSION-COMPILER-CONTENT.so``. VERSION is a hash of the sources, the flags, the processor and the C
library, COMPILER one of the compiler: a change of any causes a new build. CONTENT is a hash of the file
itself: a changed file is built again, as loading it could end the process. Where no compiler works, the
library of another compiler is used.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

COMPILERS = ("c++", "g++", "clang++")
SECONDS = 300
"""Time limit of the compiler."""
compiled_sources: dict[Path, bytes] = {}
"""Content of the sources of the libraries that this process uses; the files may change later."""


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
        OSError: there is no compiler, or no folder to keep the library in.
        subprocess.SubprocessError: the compiler fails.
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
    """Return the path of the C++ compiler, and a hash of path and version. Raises as ``shared_library``."""
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
