"""Prints what each cell of a submitted study is doing: from the run folders and from SLURM's queue.

    python -m slurm.status study=compare [runs=runs]

waiting       in the queue
running       on a node, with the step of its last logged row
preempted     stopped and saved; goes on when its job runs again, or when it is submitted again
done          result.json says complete
diverged, oom, failed    result.json says so, and why
interrupted   begun, without a result, and in no queue: killed; submit again
missing       not begun, and in no queue: submit again
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import rich.console
import rich.table
from omegaconf import OmegaConf

from experiments.config.structured import typed
from experiments.runtime.errors import ConfigError, RunError, nearest
from slurm.cells import Cell, submissions
from slurm.queue import Task, ended, live

GONE = ("COMPLETING", "PENDING", "REQUEUED", "REQUEUE_HOLD", "CONFIGURING", "SUSPENDED")
"""States of a task in the queue that trains nothing."""
WIDTH = 150


@dataclass(frozen=True, kw_only=True)
class StatusConfig:
    """What is asked of ``slurm.status``."""

    study: str
    """The study, a folder inside ``runs``."""
    runs: str = "runs"
    """The folder of all studies."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A cell and what it is doing."""

    cell: Cell
    state: str
    step: int | None
    """The step of the last row of metrics.jsonl."""
    task: Task | None
    """Its task in the queue, or its last one where the cluster keeps accounts."""
    message: str


def state_of(cell: Cell, task: Task | None) -> str:
    """One of the states in the module's docstring; ``task`` is the cell's in the queue, if any."""
    status = cell.status
    running = task is not None and task.state not in GONE
    if status == "complete":
        return "done"
    if status == "preempted":
        return "running" if running else status
    if running:  # an old result is removed when its run begins again
        return status or "running"
    if task is not None:
        return "waiting"
    return status or ("interrupted" if Path(cell.folder).exists() else "missing")


def last_step(cell: Cell) -> int | None:
    """The step of the last whole row of metrics.jsonl."""
    path = Path(cell.folder) / "metrics.jsonl"
    if not path.exists():
        return None
    for line in reversed(path.read_text(encoding="utf-8").splitlines()):
        try:
            return int(json.loads(line)["step"])
        except ValueError:  # half a row: it is being written, or the run was killed
            continue
    return None


def rows(study: Path) -> list[Row]:
    """Every cell that was ever submitted, as its newest submission knows it. Raises RunError."""
    found = submissions(study)
    if not found:
        have = [path.parent.name for path in study.parent.glob("*/slurm")]
        raise ConfigError(
            f"study={study.name}: nothing was submitted into {study.parent}/{nearest(study.name, have)}"
        )
    names = [each.name for each in found]
    queue, accounts = live(names), ended(names)
    newest: dict[str, Cell] = {}
    tasks: dict[str, Task] = {}
    waiting: dict[str, Task] = {}
    for each in found:
        for cell in each.cells:
            newest[cell.key] = cell
            index = (each.name, cell.task)
            if cell.task is not None and index in queue:
                waiting[cell.key] = queue[index]  # type: ignore[index]
            elif cell.task is not None and index in accounts:
                tasks[cell.key] = accounts[index]  # type: ignore[index]
    return [
        Row(
            cell=cell,
            state=state_of(cell, waiting.get(key)),
            step=last_step(cell),
            task=waiting.get(key, tasks.get(key)),
            message=str((cell.result() or {}).get("message") or "").partition("\n")[0],
        )
        for key, cell in newest.items()
    ]


def table(found: Sequence[Row]) -> rich.table.Table:
    shown = rich.table.Table(box=rich.box.SIMPLE)
    for name in ("cell", "seed", "state", "step", "task", "SLURM says", "where, why"):
        shown.add_column(
            name, justify="right" if name in ("seed", "step") else "left", no_wrap=name != "where, why"
        )
    for row in sorted(found, key=lambda row: (row.cell.name, row.cell.key)):
        task = row.task or Task(job="", state="")
        if row.state == "done":
            task = Task(job=task.job, state="")
        shown.add_row(
            row.cell.key.rpartition("-")[0],
            str(row.cell.seed),
            row.state,
            "" if row.step is None else f"{row.step:,}",
            task.job,
            task.state,
            row.message if row.state in ("diverged", "oom", "failed") else task.place,
        )
    return shown


def main(words: Sequence[str]) -> int:
    """The exit code: 0, or that of the mistake."""
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
        f"{len(found)} {'cell' if len(found) == 1 else 'cells'}: "
        + ", ".join(f"{number} {state}" for state, number in counts.items())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
