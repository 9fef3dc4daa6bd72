"""Provenance of a result: code, versions, data, machine, kernels, command.

The hash of the code covers the packages of the project and the modules of the user, with or without git.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig

from archbench.architectures.fast_paths import find_kernel
from archbench.architectures.shared_library import compiled_sources
from archbench.experiments.config.structured import is_own
from archbench.experiments.config.study import typed_command
from archbench.experiments.runtime.errors import CheckpointError
from archbench.experiments.runtime.imported_sources import PACKAGE, RECORDED, keep, kept, source
from archbench.experiments.runtime.secrets import redact
from archbench.experiments.tracking.run_files import DataSource, DeviceUsed, GitState, Provenance, Resume
from archbench.experiments.tracking.run_folder import RunFolder

SUFFIXES = (".py", ".cpp", ".h")
"""Suffixes of the source files of a package."""
PACKAGES = ("torch", "numpy", "hydra-core", "datasets", "tokenizers", "safetensors", "wandb")
SETTINGS = (
    "ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_DEBUG_CPU_TYPE", "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_CPU_ISA_HINTS", "DNNL_CPU_ISA_HINTS",
    "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE", "TORCH_MKLDNN_MATMUL_MIN_DIM",
    "OPENBLAS_CORETYPE", "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)  # fmt: skip
"""Variables of the environment with which numerical libraries round differently."""
KERNEL_PACKAGES = ("causal-conv1d", "mamba-ssm", "triton")
"""Packages that compute operations if they are installed."""


def provenance(
    key: str,
    device: torch.device,
    precision: str,
    data: DataSource,
    kernels: dict[str, str],
    modules: Iterable[str] = (),
) -> Provenance:
    """Return the provenance of the first session of a run.

    Args:
        key: key of the run.
        device: device of the run.
        precision: ``device.precision``.
        data: data that the run is trained on.
        kernels: selected implementation of each operation.
        modules: dotted names of the modules of backbone, objective and task, which may be the user's.
    """
    code = code_hashes(modules)
    commit, dirty = current_commit()
    return Provenance(
        key=key,
        git=GitState(commit=commit, dirty=dirty, code=code_hash(code)),
        code=code,
        versions=_versions(frozenset(used_packages(modules))),
        data=data,
        device=device_used(device, precision),
        kernels=kernels,
        command=typed_command("train", *redact(sys.argv[1:])),
        overrides=redact(HydraConfig.get().overrides.task) if HydraConfig.initialized() else [],
        resume=Resume(sittings=1, exact=True, changed={}),
    )


def device_used(device: torch.device, precision: str) -> DeviceUsed:
    """Return the device that this process computes on."""
    used = DeviceUsed(
        name=device.type,
        processor=processor(device),
        threads=torch.get_num_threads(),
        precision=precision,
        library_settings=", ".join(f"{name}={os.environ[name]}" for name in SETTINGS if name in os.environ),
    )
    if device.type == "cpu":
        used.pytorch_instruction_set = torch.backends.cpu.get_cpu_capability()
        loaded = find_kernel("loaded")
        if loaded is not None and (library := loaded()) is not None:
            used.instruction_set, used.compiler = library.instruction_set, library.compiler
    return used


@functools.cache
def _versions(more: frozenset[str]) -> dict[str, str]:
    """Return the versions of Python and of packages; ``more`` are those that the user's code imports."""
    versions = {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}}
    for name in sorted({*KERNEL_PACKAGES, *more} - set(PACKAGES)):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


@functools.cache
def current_commit() -> tuple[str | None, bool | None]:
    """Return the commit of the code, and whether a file was changed since; None if git does not have it.

    None also if a file has changed since it was imported: git describes files. Comparison once.
    """
    # git sets these variables in its hooks, for the repository that calls.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=10, env=environment)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return ended.stdout.strip() if ended.returncode == 0 else None

    if any(not _is_as_imported(path, content) for path, content in kept().items()):
        return None, None
    if git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None, None  # installed inside a repository that does not have it
    status = git("status", "--porcelain")
    return git("rev-parse", "HEAD"), None if status is None else bool(status)


def _is_as_imported(path: str, content: bytes) -> bool:
    try:
        return Path(path).read_bytes() == content
    except OSError:
        return False


def processor(device: torch.device) -> str:
    """Return the name of the GPU or of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def code_hashes(modules: Iterable[str] = ()) -> dict[str, str]:
    """Return a hash of the source of each package of ``RECORDED``, and of modules of the user.

    The key is the name of the package or module, the hash has 16 hexadecimal digits. A source that was
    imported or compiled counts as it was then, even if the file has changed since; a hash is computed once.

    Args:
        modules: dotted names. Modules of the user that they import are included. Modules of Python and of
            installed packages are not: the versions of packages are recorded.
    """
    for path, content in compiled_sources.items():
        keep(path, content)
    return {top: _hash(top) for top in [*RECORDED, *sorted(_user_modules(modules))]}


def code_hash(hashes: Mapping[str, str]) -> str:
    """Return one hash of all code, 16 hexadecimal digits, from the result of ``code_hashes``."""
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()[:16]


def changed_code(folder: RunFolder, modules: Iterable[str]) -> list[str]:
    """Return the packages and modules that have changed since a run.

    Empty if it recorded none, or if provenance.json is damaged: result and model can be used without it.

    Args:
        folder: of the run.
        modules: as for ``code_hashes``.
    """
    try:
        recorded = folder.provenance()
    except CheckpointError:
        return []
    if recorded is None or not recorded.code:
        return []
    return [name for name, digest in code_hashes(modules).items() if recorded.code.get(name) != digest]


def used_packages(modules: Iterable[str]) -> set[str]:
    """Return the distributions that modules of the user import, directly or through each other."""
    user_modules = _user_modules(modules)
    if not user_modules:
        return set()
    distributions = metadata.packages_distributions()  # reads all installed packages: a second
    # Without this project: its code is hashed, and only some of its runs would record it.
    used = {module.partition(".")[0] for top in user_modules for module in used_modules(top)} - {PACKAGE}
    return {name for module in used for name in distributions.get(module, ())}


@functools.cache
def _hash(top: str) -> str:
    digest = hashlib.sha256()
    for name, path in _sources(top):
        digest.update(f"{top}/{name}\0".encode())
        content = source(path)
        _hashed[os.path.realpath(path)] = top, content
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()[:16]


def late_changes() -> list[str]:
    """Return the packages and modules with a file that was imported after ``code_hashes``, and changed."""
    imported = kept()
    return sorted({top for path, (top, content) in _hashed.items() if imported.get(path, content) != content})


_hashed: dict[str, tuple[str, bytes]] = {}
"""Package and content of the hashed files by their real paths."""


def _user_modules(modules: Iterable[str]) -> set[str]:
    """Return the top-level modules of the user among ``modules``, and those that their source imports."""
    collected: set[str] = set()
    imported = {name.partition(".")[0] for name in modules}
    while new := {name for name in imported - collected - {PACKAGE} if is_own(name)}:
        collected |= new
        imported = {name.partition(".")[0] for top in new for name in used_modules(top)}
    return collected


def used_modules(top: str) -> set[str]:
    """Return the dotted names of the modules that a package's source imports, also inside functions.

    ``from a import b`` counts as ``a.b``, whether b is a module or not.

    The source is read, not the modules in memory: a constant in memory does not know its module.
    """
    used = set()
    for name, path in _sources(top):
        try:
            tree = ast.parse(source(path)) if name.endswith(".py") else ast.Module([], [])
        except (SyntaxError, ValueError):  # a file that cannot be imported
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                used |= {f"{node.module}.{alias.name}" for alias in node.names}
    return used


def _sources(top: str) -> list[tuple[str, Path]]:
    """Return name and path of each source file of a top-level module, in order."""
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # __main__ has none
        return []
    if spec is None:
        return []
    if not spec.submodule_search_locations:
        return [(Path(spec.origin).name, Path(spec.origin))] if spec.origin else []
    imported = {Path(path) for path in kept()}
    return [
        (path.relative_to(folder).as_posix(), path)
        for folder in sorted(map(os.path.realpath, spec.submodule_search_locations))
        for path in sorted({*Path(folder).rglob("*")} | imported)
        if path.suffix in SUFFIXES and path.is_relative_to(folder) and (path in imported or path.is_file())
    ]
