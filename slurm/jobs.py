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

from experiments.config.studies import typed_command
from experiments.runtime.errors import RunError
from slurm.allocation import Allocation, minutes
from slurm.cluster import CLUSTER, ClusterConfig
from slurm.queue import call
from slurm.submission import StudyRun, job_name

REFERENCE = re.compile(r"\$(\w+)")
"""The id of an earlier job in the dependencies of a later one."""
DEPENDENCY = "--dependency="


def by_allocation(runs: Sequence[StudyRun]) -> list[tuple[Allocation, list[StudyRun]]]:
    """Return runs grouped by nodes, processes and GPUs, in the order of the groups' first runs.

    The time limit of a group is the longest of its runs, and the cluster's where one of them has none.
    """
    groups: dict[Allocation, list[StudyRun]] = {}
    for run in runs:
        groups.setdefault(dataclasses.replace(run.allocation, time=""), []).append(run)
    found = []
    for asked, group in groups.items():
        times = [run.allocation.time for run in group]
        found.append((dataclasses.replace(asked, time=max(times, key=minutes) if all(times) else ""), group))
    return found


def commands(
    cluster: ClusterConfig,
    folder: Path,
    runs: Sequence[StudyRun],
    words: Sequence[str],
    max_running: int | None = None,
) -> dict[str, list[str]]:
    """Return the sbatch commands in order, by job; ``$NAME`` stands for the id of an earlier job.

    Runs with as many nodes, processes and GPUs are one array; all have one name, and no task index twice.

    Args:
        cluster: the cluster's file.
        folder: of the submission, ``runs/STUDY/slurm/ID``.
        runs: of the study; those with an array task are submitted.
        words: for experiments.train, of the whole study.
        max_running: tasks of each array that may run at once; None for no limit.
    """
    study, base = folder.parents[1], ["sbatch", "--parsable", *cluster.common_options()]
    limit = f"%{max_running}" if max_running else ""
    name = job_name(folder)
    jobs = {
        "prepare": [
            *base, f"--job-name={name}-prepare", log_file(folder, "prepare.out"),
            "slurm/module.sbatch", "experiments.prepare", *words,
        ],
    }  # fmt: skip
    groups = by_allocation([run for run in runs if run.task is not None])
    for asked, group in groups:
        tasks = [run.task for run in group if run.task is not None]
        jobs["runs" if len(groups) == 1 else f"runs_{asked.name}"] = [
            *base, f"--job-name={name}", log_file(folder, "%a.out"), "--dependency=afterany:$prepare",
            f"--array={min(tasks)}-{max(tasks)}{limit}", *asked.options(), *cluster.array_options(),
            "slurm/study.sbatch", str(folder),
        ]  # fmt: skip
    arrays = ":".join(f"${job}" for job in jobs if job != "prepare")
    jobs["analysis"] = [
        *base, f"--job-name={name}-analysis", log_file(folder, "analysis.out"),
        f"--dependency=afterany:{arrays}", "slurm/module.sbatch", "analysis.compare", f"study={study.name}",
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
    """File of cluster settings; slurm/cluster.env.example shows what it holds."""

    def __post_init__(self) -> None:
        if self.max_running is not None and self.max_running < 1:
            raise ValueError(f"max_running={self.max_running} must be at least 1, or null for no limit")


def dry_run(jobs: Mapping[str, list[str]], command: str, words: Sequence[str]) -> list[str]:
    """Return the lines of a dry run: what sbatch would be given for each job, and what submits them.

    Args:
        jobs: from ``commands``, for a folder named ID, which is not there.
        command: the command of the dry run, such as ``slurm submit``.
        words: its words.
    """
    words = [word for word in words if not word.startswith("submit=")]
    return [
        *(f"  {name}: {shlex.join(job)}" for name, job in jobs.items()),
        "Nothing was submitted. This submits the jobs, and makes the folder that is named ID above:",
        f"  {typed_command(command, *words, 'submit=true')}",
    ]


def log_file(folder: Path, name: str) -> str:
    """Return sbatch's option for a log; ``%`` in the folder is no pattern, as it is in ``%a.out``."""
    return f"--output={str(folder).replace('%', '%%')}/{name}"


def submit_jobs(jobs: Mapping[str, list[str]]) -> list[str]:
    """Submit all the jobs, one after the other, or none: what was submitted before a failure is withdrawn.

    So it is at a signal between two jobs (a closed terminal, for one). One that arrives while ``sbatch`` runs
    waits for the id of the job.

    Returns:
        A line for each job, with its id.

    Raises:
        RunError: a job was not taken, or a signal asked to stop before the last.
    """
    ids: dict[str, str] = {}
    lines = []
    with _held_signals() as received:
        try:
            for name, command in jobs.items():
                if received:
                    raise RunError(f"stopped by {received[0].name}")
                words = [
                    REFERENCE.sub(lambda found: ids[found[1]], word) if word.startswith(DEPENDENCY) else word
                    for word in command
                ]
                ids[name] = call(*words).strip().partition(";")[0]  # ID, or ID;CLUSTER
                lines.append(f"{name}: job {ids[name]}: {shlex.join(words)}")
        except BaseException as failure:
            reason = str(failure) or type(failure).__name__
            raise RunError(f"{reason}; {_withdraw(ids)}") from failure
    return lines


@contextmanager
def _held_signals() -> Iterator[list[signal.Signals]]:
    """Note the signals that ask to stop instead of dying of them."""
    received: list[signal.Signals] = []

    def note(number: int, frame: object) -> None:
        received.append(signal.Signals(number))

    before = {
        number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _withdraw(ids: Mapping[str, str]) -> str:
    """Cancel jobs that were submitted, and return what became of them."""
    if not ids:
        return "nothing was submitted"
    named = ", ".join(f"{name} ({number})" for name, number in ids.items())
    try:
        call("scancel", *ids.values())
    except RunError as error:
        return f"already in the queue, and could not be withdrawn ({error}): {named}; scancel them"
    return f"withdrawn again: {named}; nothing is left in the queue"
