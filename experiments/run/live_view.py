"""The live view of a study: what runs, how far it is, what failed. Read from the run folders alone.

It writes nothing and asks no process, so it may run anywhere that sees the folders, any number of times.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich.box
import rich.console
import rich.live
import rich.table

from experiments.run.sweep_schedule import makespan
from experiments.runtime import run_lock as lock
from experiments.runtime.console import clock, count
from experiments.runtime.errors import Preempted, RunError
from experiments.runtime.run_status import RunStatus
from experiments.tracking.run_files import EvaluationRow, TrainRow, parse_rows
from experiments.tracking.run_folder import RunFolder

EVERY = 2.0
"""Seconds between two looks."""
TAIL = 16_384
"""Bytes at the end of metrics.jsonl that are read: some fifty rows."""
ENDED = (
    RunStatus.COMPLETE,
    RunStatus.DIVERGED,
    RunStatus.OOM,
    RunStatus.FAILED,
    RunStatus.REFUSED,
    RunStatus.UNREADABLE,
)
"""Statuses of runs that nothing continues by itself."""
OPEN = (RunStatus.PREEMPTED, "running", "interrupted", "missing")
"""The others. ``interrupted``, as ``running``, has begun and has no result; no process writes it."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A cell with its seed, as the plan of a study gives it."""

    cell: str
    backbone: str
    seed: int
    folder: Path
    tokens: int
    """Tokens of training."""
    size: int = 1
    """``scale.target``. Within a study, training takes about as long as tokens times size."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """Progress of one run."""

    planned: Planned
    status: str
    """One of ``ENDED`` or ``OPEN``."""
    message: str = ""
    """Reason, in one line, of a run that did not complete."""
    writer: str = ""
    """The process that writes it."""
    tokens: float = 0.0
    seconds: float = 0.0
    """Seconds of training steps so far."""
    train: TrainRow | None = None
    validation: EvaluationRow | None = None
    """The last rows of the record."""

    @property
    def fraction_done(self) -> float:
        """Fraction of the training that is done."""
        return min(1.0, self.tokens / self.planned.tokens)

    @property
    def seconds_left(self) -> float | None:
        """Seconds of training left, at the speed so far; None before the first row."""
        return self.seconds * (1 - self.fraction_done) / self.fraction_done if self.tokens else None


def look(planned: Planned) -> Look:
    """Reads a run's folder. What is half-written counts as not there yet."""
    folder = planned.folder
    try:
        result = RunFolder(folder).result()
    except RunError as error:
        return Look(planned=planned, status=str(RunStatus.UNREADABLE), message=str(error))
    if result is not None:
        return Look(
            planned=planned,
            status=str(result.status),
            message=" ".join((result.message or "").split()),
            tokens=0.0 if result.training is None else result.training.tokens,
            seconds=0.0 if result.training is None else result.training.seconds,
        )
    if not folder.exists():
        return Look(planned=planned, status="missing")
    train, validation = last_rows(folder / "metrics.jsonl")
    last = max(filter(None, (train, validation)), key=lambda row: row.step, default=None)
    writer = lock.writer(folder)
    return Look(
        planned=planned,
        status="running" if writer else "interrupted",
        writer=writer or "",
        tokens=0.0 if last is None else last.tokens,
        seconds=0.0 if last is None else last.seconds,
        train=train,
        validation=validation,
    )


def seconds_left(looks: list[Look]) -> float | None:
    """Return the seconds until a study has ended, with as many runs at a time as now; None if nothing tells.

    A run that has not begun takes as long for its tokens and size as the median of its run configuration,
    else of its backbone, else of all. The longest begin first, as in a sweep.
    """
    pace: dict[str, list[float]] = defaultdict(list)
    for run in looks:
        if run.tokens:
            work = run.planned.tokens * run.planned.size * run.fraction_done
            for group in (run.planned.cell, run.planned.backbone, ""):
                pace[group].append(run.seconds / work)
    running = [run for run in looks if run.status == "running"]
    if not pace or not running:
        return None

    def left(run: Look) -> float:
        if run.seconds_left is not None:
            return run.seconds_left
        alike = pace.get(run.planned.cell) or pace.get(run.planned.backbone) or pace[""]
        return statistics.median(alike) * run.planned.tokens * run.planned.size

    waiting = [left(run) for run in looks if run.status in OPEN and run.status != "running"]
    return makespan(sorted(waiting, reverse=True), len(running), [left(run) for run in running])


def screen(study: str, looks: list[Look]) -> rich.console.Group:
    """Counts, a row for each backbone, the runs that go on, and those that failed."""
    left = seconds_left(looks)
    done = sum(run.status == "complete" for run in looks)
    fraction = sum(1.0 if run.status in ENDED else run.fraction_done for run in looks) / len(looks)
    head = f"{study}: {done} of {len(looks)} runs complete, {fraction:.0%} of the training"
    if left is not None:
        head += f", about {clock(left)} left"
    parts: list[Any] = [head, _backbones(looks)]
    going = [run for run in looks if run.status == "running"]
    if going:
        parts.append(_going(going))
    failed = [run for run in looks if run.status in ENDED and run.status != "complete"]
    if failed:
        table = _table("failed", "seed", "how", "why")
        for run in failed:
            table.add_row(run.planned.cell, str(run.planned.seed), run.status, run.message)
        parts.append(table)
    return rich.console.Group(*parts)


def watch(study: str, planned: list[Planned]) -> list[Look]:
    """Shows a study until all its runs have ended, or Ctrl-C; without a terminal once. The last look."""
    console = rich.console.Console(highlight=False)
    looks = [look(run) for run in planned]
    if not console.is_terminal:
        rich.console.Console(highlight=False, width=150).print(screen(study, looks), markup=False)
        return looks
    try:
        with rich.live.Live(screen(study, looks), console=console, auto_refresh=False) as live:
            while any(run.status in OPEN for run in looks):
                time.sleep(EVERY)
                looks = [run if run.status == "complete" else look(run.planned) for run in looks]
                live.update(screen(study, looks), refresh=True)
    except (KeyboardInterrupt, Preempted):
        pass  # the view ends; the study goes on
    return looks


def _backbones(looks: list[Look]) -> rich.table.Table:
    statuses = [status for status in (*ENDED, *OPEN) if any(run.status == status for run in looks)]
    table = _table("backbone", *statuses, "training")
    names = dict.fromkeys(run.planned.backbone for run in looks)
    for name in names:
        of_backbone = [run for run in looks if run.planned.backbone == name]
        counts = Counter(run.status for run in of_backbone)
        fraction = sum(1.0 if run.status in ENDED else run.fraction_done for run in of_backbone) / len(
            of_backbone
        )
        table.add_row(name, *(str(counts[status] or "") for status in statuses), f"{fraction:.0%}")
    return table


def _going(looks: list[Look]) -> rich.table.Table:
    table = _table("running", "seed", "done", "loss", "validation", "tokens/s", "left", "process")
    for run in looks:
        train, left = run.train, run.seconds_left
        table.add_row(
            run.planned.cell,
            str(run.planned.seed),
            f"{run.fraction_done:.0%}",
            "" if train is None else f"{train.loss:.4f}",
            _score(run.validation),
            "" if train is None else count(train.tokens_per_second),
            "" if left is None else clock(left),
            run.writer,
        )
    return table


def _table(first: str, *others: str) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.SIMPLE)
    table.add_column(first, no_wrap=True)
    for name in others:
        words = name in ("process", "how", "why")
        table.add_column(name, justify="left" if words else "right", overflow="fold", no_wrap=not words)
    return table


def _score(row: EvaluationRow | None) -> str:
    """Return the first metric of an evaluation."""
    if row is None or not row.measured:
        return ""
    name, value = next(iter(row.measured.items()))
    return f"{name} {value:.4f}"


def last_rows(path: Path) -> tuple[TrainRow | None, EvaluationRow | None]:
    """Return the last rows of training and of validation at the end of metrics.jsonl; None without any."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None, None
    train, validation = None, None
    for _, row in parse_rows(lines):
        if isinstance(row, TrainRow):
            train = row
        elif row.kind == "validation":
            validation = row
    return train, validation
