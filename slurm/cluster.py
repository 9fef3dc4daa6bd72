"""Options of sbatch for a cluster, read from the ``CLUSTER_`` lines of ``slurm/cluster.env``."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf

from archbench.experiments.config.structured import typed
from archbench.experiments.runtime.errors import ConfigError

CLUSTER = "slurm/cluster.env"
"""Default path of the file."""
PREFIX = "CLUSTER_"


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Options of sbatch, and the environment of a job. Empty values select the cluster's defaults."""

    partition: str = ""
    """Partition, or multiple partitions separated by commas."""
    account: str = ""
    """Account to charge."""
    qos: str = ""
    """Quality of service."""
    time: str = ""
    """Time limit of a task, in a format of sbatch: ``04:00:00``."""
    nodes: int = 1
    """Nodes of a task."""
    tasks_per_node: int = 1
    """Processes of a run on each node."""
    gpus_per_node: int = 0
    """GPUs on each node, shared by the runs of a task."""
    cpus_per_task: int = 1
    """CPUs of each process."""
    mem: str = ""
    """Memory of each node: ``32G``."""
    options: str = ""
    """Further options of sbatch, as on its command line; they override those above."""
    modules: str = ""
    """Environment modules that a job loads."""
    python: str = "python"
    """The interpreter of a job, relative to the root of the checkout."""

    def __post_init__(self) -> None:
        for name in ("nodes", "tasks_per_node", "cpus_per_task"):
            if getattr(self, name) < 1:
                raise ValueError(f"{PREFIX}{name.upper()}={getattr(self, name)} must be at least 1")
        if self.gpus_per_node < 0:
            raise ValueError(f"{PREFIX}GPUS_PER_NODE={self.gpus_per_node} must be 0 or more")

    def common_options(self) -> list[str]:
        """Return the options of every job: partition, account, time limit, memory and CPUs."""
        options = {
            "--partition": self.partition,
            "--account": self.account,
            "--qos": self.qos,
            "--time": self.time,
            "--mem": self.mem,
            "--cpus-per-task": str(self.cpus_per_task),
        }
        return [f"{option}={value}" for option, value in options.items() if value]

    def array_options(self) -> list[str]:
        """Return ``options``, the options of the array of runs in addition to its allocation."""
        return shlex.split(self.options)


def chosen_cluster(path: str) -> ClusterConfig:
    """Return the settings of a cluster, and tell sbatch to hand the file to its jobs. Raises ConfigError.

    Without the default file the cluster's own defaults apply.
    """
    if path == CLUSTER and not Path(path).exists():
        print(f"There is no {CLUSTER}: the cluster's defaults apply.")
        return ClusterConfig()
    os.environ["ARCHBENCH_CLUSTER"] = path
    return read_cluster(Path(path))


def read_cluster(path: Path) -> ClusterConfig:
    """Read a file of ``KEY=VALUE`` lines in shell syntax. Raises ConfigError."""
    values = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(
            f"cluster={path}: {error.strerror}; copy slurm/cluster.env.example and fill it in"
        ) from None
    for line_number, line in enumerate(lines, start=1):
        key, equals, value = line.partition("=")
        if not equals or not key.startswith(PREFIX):
            continue  # a comment, or a variable for jobs only
        try:
            parts = shlex.split(value, comments=True)
        except ValueError as error:
            raise ConfigError(f"{path}:{line_number}: {line}: {error}") from None
        if len(parts) > 1:
            raise ConfigError(f"{path}:{line_number}: {line}: a value with spaces needs quotes")
        if parts and parts[0]:
            if set("$`") & set(parts[0]):
                raise ConfigError(
                    f"{path}:{line_number}: {line}: {PREFIX} values are taken as they are; write it out"
                )
            values[key.removeprefix(PREFIX).lower()] = parts[0]
    return typed(ClusterConfig, OmegaConf.to_container(OmegaConf.create(values)), str(path))  # type: ignore[arg-type]
