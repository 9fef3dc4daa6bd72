"""Queries SLURM for array tasks: those in the queue (squeue), and the states of finished ones (sacct)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

from archbench.experiments.runtime.errors import RunError

TIMEOUT = 60.0
"""Seconds to wait for a command of SLURM; a busy controller is slow."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Array task as SLURM reports it."""

    job: str
    """Job id, as in ``1234_5``."""
    state: str
    """State: PENDING, RUNNING, COMPLETING, ...; after its end COMPLETED, FAILED, CANCELLED, TIMEOUT, ..."""
    nodes_or_reason: str = ""
    """Nodes that it runs on, or the reason why it waits (squeue's %R)."""


def call(*command: str) -> str:
    """Return the output of a SLURM command. Raises RunError if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    except FileNotFoundError:
        raise RunError(f"{command[0]} is not on the path: is this a machine of the cluster?") from None
    except OSError as error:  # not executable, or no resources for another process
        raise RunError(f"{command[0]} could not be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise RunError(f"{command[0]} did not answer within {TIMEOUT:.0f} s; try again later") from None
    if done.returncode != 0:
        raise RunError(f"{command[0]}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def queued_tasks(names: Iterable[str]) -> dict[tuple[str, int], Task]:
    """Return the waiting and running tasks by job name and index. Raises RunError."""
    listed = ",".join(names)
    if not listed:
        return {}
    # A requeued task is COMPLETING until its previous run has ended; it stays in the queue meanwhile.
    answer = call("squeue", "--noheader", "--array", f"--name={listed}", "--format=%j|%K|%F_%K|%T|%R")
    tasks = {}
    for line in answer.splitlines():
        name, index, job, state, nodes_or_reason = line.split("|", 4)
        if index.isdecimal():
            tasks[name, int(index)] = Task(job=job, state=state, nodes_or_reason=nodes_or_reason)
    return tasks


def finished_tasks(names: Iterable[str]) -> dict[tuple[str, int], Task]:
    """Return the tasks that have left the queue; none if the cluster has no accounting."""
    listed = ",".join(names)
    if not listed:
        return {}
    try:
        answer = call(
            "sacct", "--noheader", "--parsable2", "--allocations", "--starttime=2000-01-01",
            f"--name={listed}", "--format=JobName,JobID,State",
        )  # fmt: skip
    except RunError:  # a cluster without accounting
        return {}
    tasks = {}
    for line in answer.splitlines():
        name, job, state = line.split("|")
        index = job.rpartition("_")[2]
        if index.isdecimal():
            tasks[name, int(index)] = Task(job=job, state=state.split()[0])
    return tasks


def allocated_seconds(names: Iterable[str]) -> dict[tuple[str, int], float]:
    """Return the seconds of allocated nodes of each task, summed over restarts; empty without accounting."""
    listed = ",".join(names)
    if not listed:
        return {}
    try:
        answer = call(
            "sacct", "--noheader", "--parsable2", "--allocations", "--duplicates", "--starttime=2000-01-01",
            f"--name={listed}", "--format=JobName,JobID,ElapsedRaw",
        )  # fmt: skip
    except RunError:  # a cluster without accounting
        return {}
    seconds: dict[tuple[str, int], float] = {}
    for line in answer.splitlines():
        name, job, elapsed = line.split("|")
        index = job.rpartition("_")[2]
        if index.isdecimal() and elapsed.isdecimal():
            seconds[name, int(index)] = seconds.get((name, int(index)), 0.0) + float(elapsed)
    return seconds
