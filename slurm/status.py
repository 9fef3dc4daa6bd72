"""Prints the state of each run of a submitted study, from the run folders and SLURM's queue.

    python -m slurm.status study=compare [runs=runs]

waiting       in the queue
running       on a node, with the step of its last logged row
preempted     stopped with a checkpoint; resumes when its job runs again or is submitted again
done          complete
diverged, oom, failed    ended with an error, which the table shows
unreadable    its record is damaged, as the table shows
refused       cannot begin, for the reason that the table shows; submitting it again does not help
interrupted   killed: it has begun, has no result, and is not in the queue; submit again
missing       not begun, and not in the queue; submit again
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import rich.console
import rich.table
from omegaconf import OmegaConf

from experiments.config.structured import typed
from experiments.run.refusal import refusals
from experiments.runtime.errors import ConfigError, RunError, nearest, nearest_folder
from experiments.runtime.json_state import json_objects, mismatch
from experiments.runtime.run_status import RunStatus
from experiments.tracking.run_files import Row as MetricsRow
from slurm.queue import Task, finished_tasks, queued_tasks
from slurm.submission import StudyRun, submissions

NOT_RUNNING = ("COMPLETING", "PENDING", "REQUEUED", "REQUEUE_HOLD", "CONFIGURING", "SUSPENDED")
"""States of a queued task in which it does not train."""
EXPLAINED = (
    RunStatus.DIVERGED, RunStatus.OOM, RunStatus.FAILED, RunStatus.REFUSED, RunStatus.UNREADABLE,
)  # fmt: skip
"""States whose reason is in the run's record, not in SLURM's."""
WIDTH = 150


@dataclass(frozen=True, kw_only=True)
class StatusConfig:
    """Options of ``slurm.status``."""

    study: str
    """The study, a folder inside ``runs``."""
    runs: str = "runs"
    """The folder of all studies."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Row of the table: a run and its state."""

    run: StudyRun
    state: str
    step: int | None
    """Step of the last row of metrics.jsonl."""
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


def last_step(run: StudyRun) -> int | None:
    """Return the step of the last complete row of metrics.jsonl."""
    path = Path(run.folder) / "metrics.jsonl"
    if not path.exists():
        return None
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    whole = (row for row in json_objects(reversed(lines)) if mismatch(row, MetricsRow) is None)
    return next((int(row["step"]) for row in whole), None)


def rows(study: Path) -> list[Row]:
    """Return a row for every run of the study's submissions. Raises RunError."""
    found = submissions(study)
    if not found:
        if not study.parent.is_dir():
            raise ConfigError(f"runs={study.parent}: there is no such folder{nearest_folder(study.parent)}")
        have = [path.parent.name for path in study.parent.glob("*/slurm")]
        raise ConfigError(
            f"study={study.name}: nothing was submitted into {study.parent}/{nearest(study.name, have)}"
        )
    names = [each.name for each in found]
    queue, accounts = queued_tasks(names), finished_tasks(names)
    newest: dict[str, StudyRun] = {}
    tasks: dict[str, Task] = {}
    waiting: dict[str, Task] = {}
    for each in found:
        for run in each.runs:
            newest[run.key] = run
            index = (each.name, run.task)
            if run.task is not None and index in queue:
                waiting[run.key] = queue[index]  # type: ignore[index]
            elif run.task is not None and index in accounts:
                tasks[run.key] = accounts[index]  # type: ignore[index]
    known = {Path(run.folder) for run in newest.values()}
    for folder, record in refusals(study):  # those that no submission has
        if folder not in known:
            newest[record["key"]] = StudyRun(
                key=record["key"], name=record["cell"], seed=record["seed"], folder=str(folder), words=[]
            )
    return [
        Row(
            run=run,
            state=state_of(run, waiting.get(key)),
            step=last_step(run),
            task=waiting.get(key, tasks.get(key)),
            message=run.message,
        )
        for key, run in newest.items()
    ]


def table(found: Sequence[Row]) -> rich.table.Table:
    """Return the rows as a table for the terminal."""
    shown = rich.table.Table(box=rich.box.SIMPLE)
    for name in ("run", "seed", "state", "step", "task", "SLURM says", "where, why"):
        shown.add_column(
            name, justify="right" if name in ("seed", "step") else "left", no_wrap=name != "where, why"
        )
    for row in sorted(found, key=lambda row: (row.run.name, row.run.key)):
        task = row.task or Task(job="", state="")
        if row.state == "done":
            task = Task(job=task.job, state="")
        shown.add_row(
            row.run.key.rpartition("-")[0],
            str(row.run.seed),
            row.state,
            "" if row.step is None else f"{row.step:,}",
            task.job,
            task.state,
            row.message if row.state in EXPLAINED else task.nodes_or_reason,
        )
    return shown


def main(words: Sequence[str]) -> int:
    """Print the table; return the exit code."""
    if any(word in ("--help", "-h") for word in words):
        print(__doc__, end="")
        return 0
    try:
        config = typed(StatusConfig, OmegaConf.to_container(OmegaConf.from_dotlist(list(words))), "")  # type: ignore[arg-type]
        found = rows((Path(config.runs) / config.study).absolute())
    except RunError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    rich.console.Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH).print(table(found))
    counts = Counter(row.state for row in found)
    print(
        f"{len(found)} {'run' if len(found) == 1 else 'runs'}: "
        + ", ".join(f"{number} {state}" for state, number in counts.items())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
