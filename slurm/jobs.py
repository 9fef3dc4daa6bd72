"""The jobs of a submission: preparation of the data, arrays of runs, and the analysis."""

from __future__ import annotations

import dataclasses
import re
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from archbench.experiments.config.study import typed_command
from archbench.experiments.runtime.errors import RunError
from archbench.slurm.allocation import Allocation, minutes
from archbench.slurm.cluster import CLUSTER, ClusterConfig
from archbench.slurm.queue import call
from archbench.slurm.submission import StudyRun, job_name

REFERENCE = re.compile(r"\$(\w+)")
"""Placeholder for the id of an earlier job in the dependencies of a later one."""
DEPENDENCY = "--dependency="


def by_allocation(runs: Sequence[StudyRun]) -> list[tuple[Allocation, list[StudyRun]]]:
    """Return runs grouped by nodes, processes and GPUs, in the order of the groups' first runs.

    The time limit of a group is the longest of its runs; if one of them has none, it is the cluster's.
    """
    groups: dict[Allocation, list[StudyRun]] = {}
    for run in runs:
        groups.setdefault(dataclasses.replace(run.allocation, time=""), []).append(run)
    timed = []
    for key, group in groups.items():
        times = [run.allocation.time for run in group]
        longest = max(times, key=minutes) if all(times) else ""
        timed.append((dataclasses.replace(key, time=longest), group))
    return timed


def commands(
    cluster: ClusterConfig,
    folder: Path,
    runs: Sequence[StudyRun],
    arguments: Sequence[str],
    max_running: int | None = None,
) -> dict[str, list[str]]:
    """Return the sbatch commands in order, by job; ``$NAME`` is a placeholder for the id of an earlier job.

    Runs with the same number of nodes, processes and GPUs form one array. All arrays have the same job name,
    and task indices are unique over them.

    Args:
        cluster: the cluster's file.
        folder: folder of the submission, ``runs/STUDY/slurm/ID``.
        runs: runs of the study; those with an array task are submitted.
        arguments: arguments of archbench.experiments.train for the full study.
        max_running: maximum number of concurrent tasks of each array; None for no limit.
    """
    study, base = folder.parents[1], ["sbatch", "--parsable", *cluster.common_options()]
    limit = f"%{max_running}" if max_running else ""
    name = job_name(folder)
    jobs = {
        "prepare": [
            *base, f"--job-name={name}-prepare", log_file(folder, "prepare.out"),
            "slurm/module.sbatch", "archbench.experiments.prepare", *arguments,
        ],
    }  # fmt: skip
    groups = by_allocation([run for run in runs if run.task is not None])
    for allocation, group in groups:
        tasks = [run.task for run in group if run.task is not None]
        jobs["runs" if len(groups) == 1 else f"runs_{allocation.name}"] = [
            *base, f"--job-name={name}", log_file(folder, "%a.out"), "--dependency=afterany:$prepare",
            f"--array={min(tasks)}-{max(tasks)}{limit}", *allocation.options(), *cluster.array_options(),
            "slurm/study.sbatch", str(folder),
        ]  # fmt: skip
    arrays = ":".join(f"${job}" for job in jobs if job != "prepare")
    jobs["analysis"] = [
        *base, f"--job-name={name}-analysis", log_file(folder, "analysis.out"),
        f"--dependency=afterany:{arrays}", "slurm/module.sbatch", "archbench.analysis.compare",
        f"study={study.name}",
        f"runs={study.parent}",
    ]  # fmt: skip
    return jobs


@dataclass(frozen=True, kw_only=True)
class SubmitOptions:
    """Options of every command that submits jobs."""

    submit: bool = False
    """Submit the jobs; without it the commands are printed."""
    max_running: int | None = None
    """Tasks of the array that may run at once; by default without limit."""
    cluster: str = CLUSTER
    """File of cluster settings; slurm/cluster.env.example describes its variables."""

    def __post_init__(self) -> None:
        if self.max_running is not None and self.max_running < 1:
            raise ValueError(f"max_running={self.max_running} must be at least 1, or null for no limit")


def dry_run(jobs: Mapping[str, list[str]], command: str, arguments: Sequence[str]) -> list[str]:
    """Return the lines of a dry run: the sbatch command of each job, and the command that submits them.

    Args:
        jobs: from ``commands``, for a folder named ID, which does not exist.
        command: the command of the dry run, such as ``slurm submit``.
        arguments: its arguments.
    """
    arguments = [argument for argument in arguments if not argument.startswith("submit=")]
    return [
        *(f"  {name}: {shlex.join(job)}" for name, job in jobs.items()),
        "Nothing was submitted. This submits the jobs, and makes the folder that is named ID above:",
        f"  {typed_command(command, *arguments, 'submit=true')}",
    ]


def log_file(folder: Path, name: str) -> str:
    """Return sbatch's option for a log; ``%`` in the folder is escaped, because sbatch expands ``%a``."""
    return f"--output={str(folder).replace('%', '%%')}/{name}"


def submit_jobs(jobs: Mapping[str, list[str]]) -> list[str]:
    """Submit all jobs in order, or none: after a failure, the jobs that were submitted are cancelled.

    They are also cancelled after a signal between two jobs, such as from a closed terminal. A signal that
    arrives while ``sbatch`` runs is handled after it has returned the id of the job.

    Returns:
        A line for each job, with its id.

    Raises:
        RunError: sbatch rejected a job, or a signal arrived before the last job.
    """
    ids: dict[str, str] = {}
    lines = []
    with _held_signals() as received:
        try:
            for name, command in jobs.items():
                if received:
                    raise RunError(f"stopped by {received[0].name}")
                command_line = [
                    REFERENCE.sub(lambda match: ids[match[1]], word) if word.startswith(DEPENDENCY) else word
                    for word in command
                ]
                ids[name] = call(*command_line).strip().partition(";")[0]  # ID, or ID;CLUSTER
                lines.append(f"{name}: job {ids[name]}: {shlex.join(command_line)}")
        except BaseException as failure:
            reason = str(failure) or type(failure).__name__
            raise RunError(f"{reason}; {_withdraw(ids)}") from failure
    return lines


@contextmanager
def _held_signals() -> Iterator[list[signal.Signals]]:
    """Collect SIGINT, SIGTERM and SIGHUP instead of being terminated by them."""
    received: list[signal.Signals] = []

    def note(signum: int, frame: object) -> None:
        received.append(signal.Signals(signum))

    previous = {
        signum: signal.signal(signum, note) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield received
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def _withdraw(ids: Mapping[str, str]) -> str:
    """Cancel the jobs that were submitted, and return a description of the outcome."""
    if not ids:
        return "nothing was submitted"
    listed = ", ".join(f"{name} ({job_id})" for name, job_id in ids.items())
    try:
        call("scancel", *ids.values())
    except RunError as error:
        return f"already in the queue, and could not be withdrawn ({error}): {listed}; scancel them"
    return f"withdrawn again: {listed}; nothing is left in the queue"
