"""The schedule of a sweep in parallel processes: the order of its runs, how many at a time, threads of each.

The runs of a sweep are independent, so a core is used best by a run of one thread. Those that take longest
begin first: the last process then ends at most a third later than in the best order (Graham 1969). Of runs
with about the same FLOPs, one of each model begins before the next seed, so that the speeds of all models,
which tell the time that is left, are known early.
"""

from __future__ import annotations

import heapq
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from archbench.experiments.run.planned import Planned
from archbench.experiments.runtime.console import plural
from archbench.experiments.runtime.machine import free_memory, usable_cores, usable_threads

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """The estimated cost of a run."""

    flops: float = 0.0
    """Of its training."""
    memory: float = 0.0
    """Bytes of its process at their peak."""
    threads: int | None = None
    """``device.threads``, where it is set."""
    useful_threads: int = 1
    """The most threads that make it faster."""
    on_gpu: bool = False
    planned: Planned | None = None
    """The run, for the view of the sweep; None where its settings cannot be read."""

    @property
    def stage(self) -> str:
        """Return the stage that the run belongs to."""
        return self.planned.stage if self.planned else ""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The number of simultaneous runs of a sweep, their threads and their order."""

    order: list[int]
    """Positions of the runs in the sweep, in the order in which they begin."""
    at_once: int
    """Runs at a time."""
    threads: int
    """Threads of each: the same, since the number may change last digits."""
    limit: str
    """The reason for the number of simultaneous runs."""
    stages: int = 1
    """Groups of runs that begin one after another (``study.stage``)."""

    @property
    def of_stages(self) -> str:
        """Return which runs the longest are the first of, if there are several stages."""
        return f" of each of {self.stages} stages" if self.stages > 1 else ""

    def __str__(self) -> str:
        """Return the line that is printed before the first run."""
        return (
            f"{plural(len(self.order), 'run')}, the longest first{self.of_stages}: {self.at_once} at a time, "
            f"{plural(self.threads, 'thread')} each; limited by {self.limit}"
        )


def make_schedule(
    costs: Sequence[RunCost], *, cores: int, threads: int, memory: float, n_jobs: int = -1
) -> Schedule:
    """Return how runs share a machine.

    Args:
        costs: of the runs, in the order of the sweep.
        cores: that there are.
        threads: of a run at most (``OMP_NUM_THREADS``).
        memory: bytes that are free.
        n_jobs: ``hydra.launcher.n_jobs``: runs at a time; -1 for as many as there are cores, -2 for one less.
    """
    requested = max(cost.threads or 1 for cost in costs)
    largest = max(cost.memory for cost in costs)
    spared = f" (hydra.launcher.n_jobs={n_jobs})" if n_jobs < -1 else ""
    limits = {
        f"{plural(cores, 'core')}{spared}": (cores + min(0, n_jobs + 1)) // requested,
        "the number of runs": len(costs),
    }
    if n_jobs > 0:
        limits = {f"hydra.launcher.n_jobs={n_jobs}": n_jobs, "the number of runs": len(costs)}
    elif any(cost.on_gpu for cost in costs):
        limits["the GPU"] = 1
    elif largest:
        size = f"{memory / GIB:.1f} GiB of free memory, up to {largest / GIB:.1f} GiB a run"
        limits[size] = int(memory // largest)
    limit = min(limits, key=lambda name: limits[name])
    at_once = max(1, limits[limit])
    stages = list(dict.fromkeys(cost.stage for cost in costs))
    sizes = [round(math.log(max(cost.flops, 1), 1.3)) for cost in costs]
    seen: Counter[str] = Counter()
    rounds = []
    for run, cost in enumerate(costs):
        cell = cost.planned.cell if cost.planned else str(run)
        rounds.append(seen[cell])
        seen[cell] += 1
    useful = min(min(cost.useful_threads for cost in costs), cores // at_once, threads)
    return Schedule(
        order=sorted(
            range(len(costs)),
            key=lambda run: (stages.index(costs[run].stage), -sizes[run], rounds[run], -costs[run].flops),
        ),
        at_once=at_once,
        threads=requested if any(cost.threads for cost in costs) else max(1, useful),
        limit=limit,
        stages=len(stages),
    )


def arrange(joblib: dict[str, Any], costs: Sequence[RunCost]) -> list[int]:
    """Complete the options of joblib for a sweep on this machine; return the order in which runs begin."""
    schedule = make_schedule(
        costs,
        cores=usable_cores(),
        threads=usable_threads(),
        memory=free_memory(),
        n_jobs=joblib["n_jobs"],
    )
    # Of several runs handed to a process together, the last would wait while other processes are free.
    joblib |= {"n_jobs": schedule.at_once, "batch_size": 1}
    os.environ["OMP_NUM_THREADS"] = str(schedule.threads)
    print(schedule, flush=True)
    return schedule.order


def makespan(seconds: Sequence[float], at_once: int, running: Sequence[float] = ()) -> float:
    """Return when the last of some runs ends, each begun in its turn as soon as a process is free.

    Args:
        seconds: that the runs take, in the order in which they begin.
        at_once: runs at a time.
        running: seconds that are left of those that have begun, ``at_once`` of them at most.
    """
    ends = [*running, *[0.0] * (at_once - len(running))]
    heapq.heapify(ends)
    for duration in seconds:
        heapq.heapreplace(ends, ends[0] + duration)
    return max(ends)
