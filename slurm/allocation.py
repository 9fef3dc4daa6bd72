"""Resources that an array task requests from SLURM, from the settings of its runs and the cluster's file."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archbench.experiments.run.estimate.resources import estimate
from archbench.experiments.run.estimate.stand_in import with_stand_in
from archbench.experiments.run.plan import plan
from archbench.experiments.runtime.errors import ConfigError, RunError
from archbench.slurm.cluster import ClusterConfig

if TYPE_CHECKING:  # imports torch, which would slow down --help
    from archbench.experiments.run.settings import Settings

TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")
"""A time limit in sbatch's formats: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS."""


@dataclass(frozen=True, kw_only=True, order=True)
class Allocation:
    """Resources of one array task."""

    nodes: int = 1
    tasks_per_node: int = 1
    """Processes on each node."""
    gpus_per_node: int = 0
    time: str = ""
    """Time limit of a task; empty leaves it to the cluster."""

    @property
    def processes(self) -> int:
        """Number of processes of a task."""
        return self.nodes * self.tasks_per_node

    @property
    def name(self) -> str:
        """Nodes and processes per node, such as ``2x8``."""
        return f"{self.nodes}x{self.tasks_per_node}"

    def options(self) -> list[str]:
        """Return the options of sbatch."""
        options = [f"--nodes={self.nodes}", f"--ntasks-per-node={self.tasks_per_node}"]
        if self.gpus_per_node:
            options.append(f"--gpus-per-node={self.gpus_per_node}")
        if self.time:
            options.append(f"--time={self.time}")
        return options


def allocation(settings: Settings, cluster: ClusterConfig) -> Allocation:
    """Return the resources of the array task of a run, without a time limit.

    ``parallel.nodes`` and ``parallel.gpus_per_node`` override the cluster's file; each GPU has a process.
    """
    parallel = settings.parallel
    tasks, gpus = cluster.tasks_per_node, cluster.gpus_per_node
    if parallel.gpus_per_node is not None:
        tasks = parallel.gpus_per_node
        gpus = 0 if settings.device.name == "cpu" else tasks
    return Allocation(nodes=parallel.nodes or cluster.nodes, tasks_per_node=tasks, gpus_per_node=gpus)


class TimeLimits:
    """Time limits from the plans of runs; each run configuration is planned once."""

    def __init__(self, longest: str) -> None:
        """Store the limit of the cluster's file, which no task exceeds.

        Args:
            longest: time limit in a format of sbatch; empty for none.

        Raises:
            ConfigError: ``longest`` is not a time limit.
        """
        self.longest = minutes(longest) if longest else math.inf
        self._planned: dict[tuple[str, str, int], str | None] = {}

    def limit(self, settings: Settings, processes: int) -> str:
        """Return the time to request; empty if the plan has no estimate, or the cluster's limit is shorter.

        A run that has not ended by then writes a checkpoint and is requeued.
        """
        key = (settings.cell, settings.digest, processes)
        if key not in self._planned:
            self._planned[key] = _planned_time(settings, processes)
        plan_limit = self._planned[key]
        return plan_limit if plan_limit is not None and minutes(plan_limit) < self.longest else ""


def minutes(time: str) -> float:
    """Return a time limit of sbatch in minutes; ``UNLIMITED`` is infinite. Raises ConfigError."""
    if time.lower() in ("infinite", "unlimited"):
        return math.inf
    match = TIME.fullmatch(time)
    if match is None:
        raise ConfigError(f"CLUSTER_TIME={time} is no time limit: write minutes, HH:MM:SS or D-HH:MM:SS")
    field1, field2, field3 = (int(match[part] or 0) for part in ("first", "second", "third"))
    if match["days"] is not None:  # D-HH[:MM[:SS]]
        return (int(match["days"]) * 24 + field1) * 60 + field2 + field3 / 60
    if match["third"] is not None:  # HH:MM:SS
        return field1 * 60 + field2 + field3 / 60
    return field1 + field2 / 60  # MM[:SS]


def _planned_time(settings: Settings, processes: int) -> str | None:
    """Return the time limit of the plan; None if the device's peak is not set, or planning fails here."""
    if settings.device.peak_flops is None:
        return None

    try:
        priced, _ = with_stand_in(settings)
        return estimate(priced, plan(priced), processes=processes).time_limit
    except RunError:  # the run itself reports and records the error
        return None
