"""Prints the state of each run of a submitted study, from the run folders and SLURM's queue.

    archbench slurm status study=compare [runs=runs]

waiting       in the queue
running       on a node
preempted     stopped with a checkpoint; resumes when its job runs again or is submitted again
done          complete
diverged, oom, failed    ended with an error, which the table shows
unreadable    its record is damaged, as the table shows
refused       cannot begin, for the reason in the table; submitting it again does not help
interrupted   killed: it has begun, has no result, and is not in the queue; submit again
missing       not begun, and not in the queue; submit again

step      of the last row of its record
tokens/s  of all its processes, at last
MFU       model FLOPs utilisation: the share of its GPUs' peak, where its device states one
left      training time until its tokens are spent, at that speed
goodput   time that trained over time allocated, all restarts together; needs accounting (sacct)
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import rich.table
from rich.markup import escape

from archbench.experiments.config.options import run_command
from archbench.experiments.run.skipped_cells import refusals
from archbench.experiments.runtime.console import clock, coloured, count, plain_table, table_console
from archbench.experiments.runtime.errors import ConfigError, nearest, nearest_folder
from archbench.experiments.runtime.run_status import RunStatus
from archbench.slurm.progress import Progress, progress
from archbench.slurm.queue import Task, allocated_seconds, finished_tasks, queued_tasks
from archbench.slurm.submission import StudyRun, submissions

NOT_RUNNING = ("COMPLETING", "PENDING", "REQUEUED", "REQUEUE_HOLD", "CONFIGURING", "SUSPENDED")
"""States of a queued task in which it does not train."""
EXPLAINED = (
    RunStatus.DIVERGED, RunStatus.OOM, RunStatus.FAILED, RunStatus.REFUSED, RunStatus.UNREADABLE,
)  # fmt: skip
"""States whose reason is in the run's record, not in SLURM's."""


@dataclass(frozen=True, kw_only=True)
class StatusConfig:
    """Which study to show."""

    study: str
    """The study, a folder inside ``runs``."""
    runs: str = "runs"
    """The folder of all studies."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Row of the table: a run and its state."""

    run: StudyRun
    state: str
    progress: Progress
    allocated: float
    """Seconds that its tasks had their nodes; 0 where the cluster does not account for them."""
    task: Task | None
    """Its task in the queue, or its last one if the cluster has accounting."""
    message: str


def state_of(run: StudyRun, task: Task | None) -> str:
    """Return a state of the module's docstring; ``task`` is the run's task in the queue, if any."""
    status = run.status
    running = task is not None and task.state not in NOT_RUNNING
    if status == "complete":
        return "done"
    if status == "preempted":
        return "running" if running else status
    if running:  # an old result is removed when its run begins again
        return status or "running"
    if task is not None:
        return "waiting"
    return status or ("interrupted" if Path(run.folder).exists() else "missing")


def rows(study: Path) -> list[Row]:
    """Return a row for every run of the study's submissions. Raises RunError."""
    existing = submissions(study)
    if not existing:
        if not study.parent.is_dir():
            raise ConfigError(f"runs={study.parent}: there is no such folder{nearest_folder(study.parent)}")
        have = [path.parent.name for path in study.parent.glob("*/slurm")]
        raise ConfigError(
            f"study={study.name}: nothing was submitted into {study.parent}/{nearest(study.name, have)}"
        )
    names = [submission.name for submission in existing]
    queue, accounts = queued_tasks(names), finished_tasks(names)
    newest: dict[str, StudyRun] = {}
    tasks: dict[str, Task] = {}
    waiting: dict[str, Task] = {}
    seconds = allocated_seconds(names)
    allocated: dict[str, float] = {}
    for submission in existing:
        for run in submission.runs:
            newest[run.key] = run
            if run.task is None:
                continue
            index = (submission.name, run.task)
            allocated[run.key] = allocated.get(run.key, 0.0) + seconds.get(index, 0.0)
            if index in queue:
                waiting[run.key] = queue[index]
            elif index in accounts:
                tasks[run.key] = accounts[index]
    folders = {Path(run.folder) for run in newest.values()}
    for folder, result in refusals(study):  # those that no submission has
        if folder not in folders:
            newest[result.key] = StudyRun(
                key=result.key, name=result.cell, seed=result.seed, folder=str(folder), words=[]
            )
    return [
        Row(
            run=run,
            state=state_of(run, waiting.get(key)),
            progress=progress(run),
            allocated=allocated.get(key, 0.0),
            task=waiting.get(key, tasks.get(key)),
            message=run.message,
        )
        for key, run in newest.items()
    ]


def tables(study_rows: Sequence[Row]) -> list[rich.table.Table]:
    """Return progress and speed of each run, then jobs and reasons of those that have not completed."""
    ordered = sorted(study_rows, key=lambda row: (row.run.name, row.run.key))
    names = _names(ordered)
    progress_rows, queue_rows = (
        [[name, *cells(row)] for name, row in zip(names, ordered, strict=True)]
        for cells in (_progress_cells, _queue_cells)
    )
    parts = [_table(("run", "seed", "state", "step", "tokens/s", "MFU", "left", "goodput"), progress_rows)]
    if queue_rows := [row for row in queue_rows if any(row[2:])]:
        parts.append(_table(("run", "seed", "task", "SLURM", "where, why"), queue_rows))
    return parts


def _names(study_rows: Sequence[Row]) -> list[str]:
    """Return CELL of each run; CELL-DIGEST of run configurations that share it."""
    digests: dict[str, set[str]] = {}
    for row in study_rows:
        digests.setdefault(row.run.name, set()).add(row.run.key.rpartition("-")[0])
    return [
        row.run.key.rpartition("-")[0] if len(digests[row.run.name]) > 1 else row.run.name
        for row in study_rows
    ]


def _table(heads: tuple[str, ...], rows: list[list[str]]) -> rich.table.Table:
    """Return a table of the columns that have a value in any row."""
    filled = [index for index in range(len(heads)) if any(row[index] for row in rows)]
    table = plain_table(*(heads[index] for index in filled), left=("state", "task", "SLURM", "where, why"))
    for row in rows:
        table.add_row(*(coloured(row[i]) if heads[i] == "state" else escape(row[i]) for i in filled))
    return table


def _progress_cells(row: Row) -> list[str]:
    """Return seed, state, step, speed, MFU, time left and goodput."""
    now, going = row.progress, row.state in ("running", "preempted", "waiting")
    goodput = now.goodput(row.allocated)
    return [
        str(row.run.seed),
        row.state,
        "" if now.step is None else f"{now.step:,}",
        "" if now.tokens_per_second is None else count(now.tokens_per_second),
        "" if now.mfu is None else f"{now.mfu:.0%}",
        clock(now.seconds_left) if going and now.seconds_left is not None else "",
        "" if goodput is None else f"{goodput:.0%}",
    ]


def _queue_cells(row: Row) -> list[str]:
    """Return seed, job, its state in SLURM, and its node or the reason why it waits or has failed."""
    if row.state == "done":
        return [str(row.run.seed), "", "", ""]
    task = row.task or Task(job="", state="")
    why = row.message if row.state in EXPLAINED else task.nodes_or_reason
    return [str(row.run.seed), task.job, task.state, why]


def summary(study_rows: Sequence[Row]) -> list[str]:
    """Return sentences: how much of the allocated time trained, and how many runs are in which state."""
    counts = Counter(row.state for row in study_rows)
    states = ", ".join(f"{n} {state}" for state, n in counts.items())
    lines = [f"{len(study_rows)} {'run' if len(study_rows) == 1 else 'runs'}: {states}"]
    if allocated := sum(row.allocated for row in study_rows):
        trained = sum(row.progress.seconds for row in study_rows if row.allocated)
        lines.insert(
            0,
            f"goodput {trained / allocated:.0%}: {clock(trained)} of training in {clock(allocated)} of tasks",
        )
    return lines


def publish(study_rows: Sequence[Row]) -> None:
    """Print the tables."""
    console = table_console()
    for part in tables(study_rows):
        console.print(part)
        console.print()
    for line in summary(study_rows):
        console.print(line, markup=False)


def main(arguments: Sequence[str]) -> int:
    """Return the exit code."""
    return run_command(
        __doc__, StatusConfig, arguments,
        lambda config: rows((Path(config.runs) / config.study).absolute()), publish,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
