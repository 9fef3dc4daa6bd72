"""Print the capabilities of this machine and this installation, and what is missing.

    archbench doctor

A line begins with ``ok``, with ``--`` for an optional part that is missing, or with ``!!`` for a problem that
makes runs fail. Nothing is installed, downloaded or sent. The exit code is 1 if a line begins with ``!!``.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from archbench.experiments.config.options import run_command

NEEDED = (
    "torch",
    "numpy",
    "hydra-core",
    "pandas",
    "pyarrow",
    "safetensors",
    "tokenizers",
    "datasets",
    "wandb",
)
OPTIONAL = {
    "tensorboard": ("tensorboard", "tracking=tensorboard: pip install 'archbench[tensorboard]'"),
    "lm_eval": ("lm-eval", "archbench evaluate downstream: pip install 'archbench[eval]'"),
    "transformers": ("transformers", "benchmarks/: pip install 'archbench[bench]'"),
    "hydra_plugins.hydra_submitit_launcher": (
        "hydra-submitit-launcher", "Hydra's SLURM launcher: pip install 'archbench[slurm]'"
    ),
    "mamba_ssm": ("mamba-ssm", "fused scans on a GPU: pip install --no-build-isolation 'archbench[cuda]'"),
    "fla": ("fla-core", "scan=fla, kernels of linear attention on a GPU: pip install 'archbench[fla]'"),
}  # fmt: skip
"""Package and purpose, by module."""
LEAST_FREE_BYTES = 2**30
"""Free bytes below which a disk counts as full."""


def findings() -> Iterator[tuple[str, str]]:
    """Yield mark and text of each line."""
    yield "ok", f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield from _packages()
    yield from _machine()
    yield from _folders()
    yield from _services()


def _packages() -> Iterator[tuple[str, str]]:
    for name in NEEDED:
        try:
            yield "ok", f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            yield "!!", f"{name} is missing: pip install archbench"
    for module, (name, purpose) in OPTIONAL.items():
        top = module.partition(".")[0]
        if importlib.util.find_spec(top) and importlib.util.find_spec(module):
            problem = _kernel_problem(module)
            described = f"{name} {metadata.version(name)}"
            yield ("!!", f"{described} cannot be used: {problem}") if problem else ("ok", described)
        else:
            yield "--", f"no {name}, for {purpose}"


def _kernel_problem(module: str) -> str:
    """Return why the kernels of a package cannot be called; empty if they can."""
    if module not in ("mamba_ssm", "fla"):
        return ""
    from archbench.architectures import fast_paths

    return "" if fast_paths.source(module) is None else fast_paths.problem(module)


def _machine() -> Iterator[tuple[str, str]]:
    import torch

    from archbench.architectures.fast_paths import kernel, problem
    from archbench.experiments.runtime.machine import free_memory, total_memory, usable_cores
    from archbench.experiments.runtime.memory import allocator_problem

    yield "ok", f"{usable_cores()} CPU cores, {torch.get_num_threads()} threads of PyTorch"
    try:
        reason = problem()
    except ValueError as error:  # of the variable that forces an instruction set
        yield "!!", str(error)
        return
    if reason:
        yield "--", f"no C++ kernels ({reason}): PyTorch's own are used, which are slower"
    else:
        yield from (("ok", line) for line in kernel("description")())
    if reason := allocator_problem():
        yield "--", f"no caching allocator ({reason}): steps with tensors above 32 MiB are slower on a CPU"
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            name = torch.cuda.get_device_name(index)
            yield "ok", f"cuda:{index} {name}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    else:
        yield "--", "no GPU that PyTorch can use"
    yield "ok", f"{free_memory() / 2**30:.1f} of {total_memory() / 2**30:.1f} GiB of memory free"


def _folders() -> Iterator[tuple[str, str]]:
    for name in ("runs", "data-cache"):
        path = Path(name).absolute()
        while not path.exists():
            path = path.parent
        free = shutil.disk_usage(path).free
        message = f"{name}: {free / 2**30:.1f} GiB free on the disk of {path}"
        if not os.access(path, os.W_OK):
            yield "!!", f"{name}: {path} is not writable: choose another folder with runs= or task.cache_dir="
        elif free < LEAST_FREE_BYTES:
            yield "!!", f"{message}: free some space, or choose another disk with runs= or task.cache_dir="
        else:
            yield "ok", message


def _services() -> Iterator[tuple[str, str]]:
    if shutil.which("sbatch") and shutil.which("squeue"):
        accounts = "" if shutil.which("sacct") else ", without accounting (sacct)"
        yield "ok", f"SLURM: {shutil.which('sbatch')}{accounts}"
    else:
        yield "--", "no SLURM: archbench slurm submit needs sbatch and squeue on the path"
    from archbench.experiments.tracking.wandb import signed_in

    remedy = "so tracking=wandb cannot upload: wandb login, or tracking=wandb_offline"
    try:
        has_key = signed_in()
        yield ("ok", "W&B: there is an API key") if has_key else ("--", f"W&B: no API key, {remedy}")
    except ValueError as error:
        yield "--", f"{error}, {remedy}"
    yield (("ok", "git") if shutil.which("git") else ("--", "no git: commits are not recorded"))


@dataclass(frozen=True)
class DoctorConfig:
    """The command has no options."""


def publish(lines: Iterator[tuple[str, str]]) -> int:
    """Print mark and text of each line, and return the exit code."""
    worst = 0
    for mark, text in lines:
        print(f"{mark}  {text}", flush=True)
        worst = max(worst, int(mark == "!!"))
    return worst


def main(arguments: Sequence[str]) -> int:
    """Run the command, and return its exit code."""
    return run_command(__doc__, DoctorConfig, arguments, lambda _: findings(), publish)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
