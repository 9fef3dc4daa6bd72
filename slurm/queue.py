"""Asks SLURM: which tasks of a submission wait or run, and how those that are gone ended."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

from experiments.runtime.errors import RunError

PATIENCE = 60.0
"""Seconds to wait for an answer of SLURM's commands; a busy controller takes its time."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task of an array as SLURM has it."""

    job: str
    """``ARRAY_TASK``, as SLURM's own commands take it."""
    state: str
    """PENDING, RUNNING, COMPLETING, ...; of an ended one COMPLETED, FAILED, CANCELLED, TIMEOUT, ..."""
    place: str = ""
    """Node, or why it waits."""


def ask(*command: str) -> str:
    """What a command of SLURM prints. Raises RunError where it is missing or refuses."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except FileNotFoundError:
        raise RunError(f"{command[0]} is not on the path: is this a machine of the cluster?") from None
    except subprocess.TimeoutExpired:
        raise RunError(f"{command[0]} did not answer within {PATIENCE:.0f} s; try again later") from None
    if done.returncode != 0:
        raise RunError(f"{command[0]}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def live(names: Iterable[str]) -> dict[tuple[str, int], Task]:
    """The tasks in the queue by name of their job and index, running ones included. Raises RunError."""
    listed = ",".join(names)
    if not listed:
        return {}
    # A task that was requeued waits out its old run as COMPLETING; it is in the queue all along.
    answer = ask("squeue", "--noheader", "--array", f"--name={listed}", "--format=%j|%K|%F_%K|%T|%R")
    tasks = {}
    for line in answer.splitlines():
        name, index, job, state, place = line.split("|", 4)
        if index.isdigit():
            tasks[name, int(index)] = Task(job=job, state=state, place=place)
    return tasks


def ended(names: Iterable[str]) -> dict[tuple[str, int], Task]:
    """The last state of tasks that have left the queue, as far as the cluster keeps accounts."""
    listed = ",".join(names)
    if not listed:
        return {}
    try:
        answer = ask(
            "sacct", "--noheader", "--parsable2", "--allocations", "--starttime=2000-01-01",
            f"--name={listed}", "--format=JobName,JobID,State",
        )  # fmt: skip
    except RunError:  # a cluster without accounting
        return {}
    tasks = {}
    for line in answer.splitlines():
        name, job, state = line.split("|")
        index = job.rpartition("_")[2]
        if index.isdigit():
            tasks[name, int(index)] = Task(job=job, state=state.split()[0])
    return tasks
