"""What an array task asks SLURM for, by the settings of its runs and the cluster's file."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.runtime.errors import ConfigError, RunError
from slurm.cluster import ClusterConfig

if TYPE_CHECKING:  # imports torch, which --help need not wait for
    from experiments.run.settings import Settings

TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")
"""A time limit as sbatch takes it: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS."""


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
        """Return the number of processes of a task."""
        return self.nodes * self.tasks_per_node

    @property
    def name(self) -> str:
        """Return nodes and processes as a word, such as ``2x8``."""
        return f"{self.nodes}x{self.tasks_per_node}"

    def options(self) -> list[str]:
        """Return the options of sbatch."""
        found = [f"--nodes={self.nodes}", f"--ntasks-per-node={self.tasks_per_node}"]
        if self.gpus_per_node:
            found.append(f"--gpus-per-node={self.gpus_per_node}")
        if self.time:
            found.append(f"--time={self.time}")
        return found


def allocation(settings: Settings, cluster: ClusterConfig) -> Allocation:
    """Return what the array task of a run asks for, without a time limit.

    ``parallel.nodes`` and ``parallel.gpus_per_node`` win over the cluster's file; each GPU has a process.
    """
    parallel = settings.parallel
    tasks, gpus = cluster.tasks_per_node, cluster.gpus_per_node
    if parallel.gpus_per_node is not None:
        tasks = parallel.gpus_per_node
        gpus = 0 if settings.device.name == "cpu" else tasks
    return Allocation(nodes=parallel.nodes or cluster.nodes, tasks_per_node=tasks, gpus_per_node=gpus)


class TimeLimits:
    """Time limits by the plans of runs, each cell planned once."""

    def __init__(self, longest: str) -> None:
        """Keep the limit of the cluster's file, which no task exceeds; empty for none.

        Args:
            longest: as sbatch takes it.

        Raises:
            ConfigError: it is no time limit.
        """
        self.longest = minutes(longest) if longest else math.inf
        self._planned: dict[tuple[str, str, int], str | None] = {}

    def limit(self, settings: Settings, processes: int) -> str:
        """Return the time to ask for; empty where the plan knows none, or the cluster's file gives less.

        A run that is not done by then saves itself and is put back into the queue.
        """
        key = (settings.cell, settings.digest, processes)
        if key not in self._planned:
            self._planned[key] = _planned_time(settings, processes)
        planned = self._planned[key]
        return planned if planned is not None and minutes(planned) < self.longest else ""


def minutes(time: str) -> float:
    """Return a time limit of sbatch in minutes; ``UNLIMITED`` is infinite. Raises ConfigError."""
    if time.lower() in ("infinite", "unlimited"):
        return math.inf
    found = TIME.fullmatch(time)
    if found is None:
        raise ConfigError(f"CLUSTER_TIME={time} is no time limit: write minutes, HH:MM:SS or D-HH:MM:SS")
    first, second, third = (int(found[part] or 0) for part in ("first", "second", "third"))
    if found["days"] is not None:  # D-HH[:MM[:SS]]
        return (int(found["days"]) * 24 + first) * 60 + second + third / 60
    if found["third"] is not None:  # HH:MM:SS
        return first * 60 + second + third / 60
    return first + second / 60  # MM[:SS]


def _planned_time(settings: Settings, processes: int) -> str | None:
    """Return the time limit of the plan; None where no peak is stated, or the run cannot be planned here."""
    if settings.device.peak_flops is None:
        return None
    from experiments.run.estimate.resources import estimate
    from experiments.run.estimate.stand_in import with_stand_in
    from experiments.run.plan import plan

    try:
        priced, _ = with_stand_in(settings)
        return estimate(priced, plan(priced), processes=processes).time_limit
    except RunError:  # the run says it itself, and its record keeps it
        return None
