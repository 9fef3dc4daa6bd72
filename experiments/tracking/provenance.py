"""Provenance of a result: code, versions, data, machine, kernels, command."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import torch

from experiments.config.study import typed_command
from experiments.runtime.secrets import redact
from experiments.tracking.code_hash import code_hash, code_hashes, used_packages
from experiments.tracking.run_files import DataSource, DeviceUsed, GitState, Provenance, Resume

PACKAGES = ("torch", "numpy", "hydra-core", "datasets", "tokenizers", "safetensors", "wandb")
KERNEL_PACKAGES = ("causal-conv1d", "mamba-ssm", "triton")
"""Packages that compute where they are installed."""


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
        key: of the run.
        device: that the run is computed on.
        precision: ``device.precision``.
        data: that the run is trained on.
        kernels: the paths that were chosen.
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
        resume=Resume(sittings=1, exact=True, changed={}),
    )


def device_used(device: torch.device, precision: str) -> DeviceUsed:
    """Return the device that this process computes on."""
    threads = torch.get_num_threads()
    return DeviceUsed(name=device.type, processor=processor(device), threads=threads, precision=precision)


@functools.cache
def _versions(more: frozenset[str]) -> dict[str, str]:
    """Return the versions of Python and of packages, ``more`` being those that code of the user's imports."""
    versions = {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}}
    for name in sorted({*KERNEL_PACKAGES, *more} - set(PACKAGES)):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


@functools.cache
def current_commit() -> tuple[str | None, bool | None]:
    """Commit of the code that runs, and whether anything was changed since; None where git does not have it.

    Asked once: a process goes on with the code that it imported, whatever becomes of the files.
    """
    # Not the repository that calls: git sets these in its hooks.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}

    def ask(*words: str) -> str | None:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        try:
            found = subprocess.run(command, capture_output=True, text=True, timeout=10, env=environment)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return found.stdout.strip() if found.returncode == 0 else None

    if ask("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None, None  # installed inside of a repository that does not hold it
    status = ask("status", "--porcelain")
    return ask("rev-parse", "HEAD"), None if status is None else bool(status)


def processor(device: torch.device) -> str:
    """The name of a GPU, or of the processor as the system tells it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
