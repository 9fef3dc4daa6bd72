"""Cores and memory that this process may use, and its rank among the processes that share a run."""

from __future__ import annotations

import math
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from archbench.experiments.runtime.errors import ConfigError

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
"""Where Linux tells; other systems have neither."""
UNLIMITED = 2**60
"""Version 1 of control groups gives a number of this size where there is no limit."""


def usable_cores() -> int:
    """Return the physical cores of the machine, or as few as affinity, control groups and SLURM leave."""
    import joblib  # imports in a fifth of a second

    cores = float(joblib.cpu_count(only_physical_cores=True))
    for folder in control_groups("cpu"):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if not quota:  # the first version of control groups
            quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():  # neither "max" nor -1
            cores = min(cores, int(quota) / int(period))
    allocated = os.environ.get("SLURM_CPUS_PER_TASK") or os.environ.get("SLURM_CPUS_ON_NODE") or ""
    if allocated.isdigit():
        cores = min(cores, int(allocated))
    return max(1, math.floor(cores))


def usable_threads() -> int:
    """Return the threads that a run may have: the value of ``OMP_NUM_THREADS``, else one for each core."""
    setting = os.environ.get("OMP_NUM_THREADS", "")
    return int(setting) if setting.isdigit() and int(setting) else usable_cores()


def total_memory() -> float:
    """Return the bytes of memory that this process can have: the machine's, or those of its control group."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(physical, *(limit for limit, _ in _memory_limits()), math.inf)


def free_memory() -> float:
    """Return the bytes of memory that new processes can have now. File caches count as free."""
    free = [limit - used for limit, used in _memory_limits()]
    for line in _text(PROC / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free.append(1024 * int(line.split()[1]))
    return min(free, default=total_memory())


def control_groups(controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups of this process, of both versions, up to the root."""
    for line in _text(PROC / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = CGROUPS / controller if controllers else CGROUPS
        group = root / path.lstrip("/")
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


def _memory_limits() -> Iterator[tuple[float, float]]:
    """Yield limit and use, without file caches, of each control group that has a limit."""
    for folder in control_groups("memory"):
        limit = _text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes")
        used = _text(folder / "memory.current") or _text(folder / "memory.usage_in_bytes") or "0"
        if limit.isdigit() and int(limit) < UNLIMITED:
            cached = [
                line.split()[1]
                for line in _text(folder / "memory.stat").splitlines()
                if "inactive_file " in line
            ]
            yield float(limit), int(used) - int(cached[-1] if cached else 0)


def _text(path: Path) -> str:
    """Return the content of a file of the system; empty if it does not exist."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


_UNSET = "start the processes of a run with torchrun or srun; for a single one, unset {names}"


def ensure_folders() -> None:
    """Check that the working folder exists, and name one for caches. A mistake ends the process.

    Called by every command before it does anything else.
    """
    try:
        if not _has_working_folder():
            raise ConfigError("the working folder has been removed: change to another one (cd)")
        ensure_home()
    except (ConfigError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(ConfigError.exit_code)


def _has_working_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def ensure_home() -> None:
    """Name a folder for caches where the user has none, as in a container with an unknown user.

    Libraries, too, read HOME and USER, and else look the user up.
    """
    try:
        Path.home()
    except RuntimeError:
        home = Path(tempfile.gettempdir(), f"archbench-{os.getuid()}")
        home.mkdir(mode=0o700, exist_ok=True)
        if home.stat().st_uid != os.getuid() or home.is_symlink():
            raise ConfigError(f"{home} belongs to somebody else: set HOME to a folder of yours") from None
        os.environ["HOME"] = str(home)
        os.environ.setdefault("USER", str(os.getuid()))


def job_number(name: str, default: int = 0) -> int:
    """Return a number that SLURM puts into the environment of a job. Raises ConfigError for another value."""
    value = os.environ.get(name, "").strip()
    if value and not re.fullmatch(r"\d{1,18}", value, re.ASCII):
        raise ConfigError(f"{name}={value} must be a whole number: SLURM sets it; unset it outside of a job")
    return int(value) if value else default


@dataclass(frozen=True, kw_only=True)
class ProcessRank:
    """The position of this process among those that share a run."""

    rank: int = 0
    local_rank: int = 0
    """Rank among the processes of its machine."""
    size: int = 1


def process_rank() -> ProcessRank:
    """Return the rank that ``torchrun`` or ``srun`` gave this process.

    Tasks of ``srun`` without MASTER_ADDR are treated as separate runs, and so is what is typed in the shell
    of ``srun --pty``. Empty variables count as unset.

    Raises:
        ConfigError: the variables describe no process of a group, as what is left of another launcher does.
    """
    env = {name: value for name, value in os.environ.items() if value.strip()}
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    is_step = "SLURM_STEP_NUM_TASKS" in env and "SLURM_PTY_PORT" not in env
    if "RANK" not in env and "MASTER_ADDR" in env and is_step:
        names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS")
    given = {name: env[name] for name in names if name in env}
    if wrong := [f"{name}={value}" for name, value in given.items() if not re.fullmatch(r"\d{1,9}", value)]:
        raise ConfigError(f"{wrong[0]} must be a whole number: {_UNSET.format(names=' '.join(given))}")
    rank, local_rank, size = (int(env.get(name, default)) for name, default in zip(names, "001", strict=True))
    found = " ".join(f"{name}={value}" for name, value in given.items())
    if not rank < size or not local_rank < size:
        raise ConfigError(
            f"{found}: ranks must be less than {names[2]}: {_UNSET.format(names=' '.join(given))}"
        )
    if size > 1 and names[0] not in env:
        raise ConfigError(f"{found}: there is no {names[0]}: {_UNSET.format(names=' '.join(given))}")
    return ProcessRank(rank=rank, local_rank=local_rank, size=size)
