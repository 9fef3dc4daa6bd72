"""The live view of a study: what runs, how far it is, what failed. Read from the run folders alone.

It writes nothing and asks no process, so it may run anywhere that sees the folders, any number of times.
``archbench plan --watch`` shows it, and ``archbench train`` during a sweep in parallel processes.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich.console
import rich.live
import rich.table
import rich.text

from archbench.experiments.run.planned import Planned
from archbench.experiments.run.sweep_schedule import makespan
from archbench.experiments.runtime import run_lock as lock
from archbench.experiments.runtime.child_processes import run_python
from archbench.experiments.runtime.console import (
    BRIEF,
    NO_LINES,
    SILENT,
    STYLES,
    clock,
    count,
    plain_table,
    table_console,
)
from archbench.experiments.runtime.errors import Preempted, RunError
from archbench.experiments.runtime.run_status import RunStatus
from archbench.experiments.tracking.run_files import EvaluationRow, RunResult, TrainRow, parse_rows
from archbench.experiments.tracking.run_folder import RunFolder

EVERY = 2.0
"""Seconds between two looks."""
QUIET = 600.0
"""Seconds without the end of a run after which a log file gets a line about the sweep."""
WARM = 0.05
"""Fraction of a training that tells its speed; the first steps are slower."""
MOST_FAILED = 8
"""Failed runs that are listed."""
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
FAILED = ENDED[1:]


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
    outside: float | None = None
    """Seconds that a complete run took besides, to start and to evaluate; None for any other."""
    score: str = ""
    """The score of a complete run, with the name of the metric."""
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
        return _ended(planned, result)
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


def _ended(planned: Planned, result: RunResult) -> Look:
    """Return what the result of a run says."""
    training, outside, score = result.training, None, ""
    if training is not None and result.status == RunStatus.COMPLETE:
        with contextlib.suppress(OSError):  # a study that is being removed
            begun, written = (
                (planned.folder / name).stat().st_mtime for name in ("config.yaml", "result.json")
            )
            outside = max(0.0, written - begun - training.seconds)
        if result.test_metrics:
            score = f"{result.test_metrics[0].name} {result.test_metrics[0].value:.4f}"
    return Look(
        planned=planned,
        status=str(result.status),
        message=" ".join((result.message or "").split()),
        tokens=0.0 if training is None else training.tokens,
        seconds=0.0 if training is None else training.seconds,
        outside=outside,
        score=score,
    )


def seconds_left(looks: list[Look], at_once: int = 0) -> float | None:
    """Return the seconds until a study has ended; None if nothing tells.

    A run that has not begun trains as long for its work as the median of its run configuration, else of its
    backbone, else of all. A run also takes the median of the seconds outside training: not the mean, since a
    run that was interrupted seems to take hours. Runs begin in the order of their stages, the longest first.

    Args:
        looks: progress of each run.
        at_once: runs at a time, if that is more than are running now.
    """
    pace: dict[str, list[float]] = defaultdict(list)
    told = [run for run in looks if run.fraction_done >= WARM] or [run for run in looks if run.tokens]
    for run in told:
        for group in (run.planned.cell, run.planned.backbone, ""):
            pace[group].append(run.seconds / (run.planned.work * run.fraction_done))
    running = [run for run in looks if run.status == "running"]
    if not pace or not (running or at_once):
        return None
    outside = statistics.median([run.outside for run in looks if run.outside is not None] or [0.0])

    def left(run: Look) -> float:
        if run.fraction_done >= WARM and run.seconds_left is not None:
            return run.seconds_left + outside
        alike = pace.get(run.planned.cell) or pace.get(run.planned.backbone) or pace[""]
        return statistics.median(alike) * run.planned.work * (1 - run.fraction_done) + outside

    waiting = [run for run in looks if run.status in OPEN and run.status != "running"]
    stages = list(dict.fromkeys(run.planned.stage for run in looks))
    waiting.sort(key=lambda run: (stages.index(run.planned.stage), -left(run)))
    return makespan(list(map(left, waiting)), max(at_once, len(running)), list(map(left, running)))


def headline(study: str, looks: list[Look], at_once: int = 0) -> str:
    """Return one line: runs that are done, running and failed, and the time left of all of them."""
    counts = Counter(run.status for run in looks)
    failed = sum(counts[status] for status in FAILED)
    parts = [f"{study}: {counts['complete']} of {len(looks)} runs done"]
    parts += [f"{counts['running']} running"] * bool(counts["running"])
    parts += [f"{failed} failed"] * bool(failed)
    parts.append(f"{_fraction_done(looks):.0%} trained")
    if (left := seconds_left(looks, at_once)) is not None:
        parts.append(f"ETA {clock(left)}")
    return ", ".join(parts)


def screen(study: str, looks: list[Look], at_once: int = 0) -> rich.console.Group:
    """Return the headline, the active runs, those that failed, and a row for each backbone.

    A terminal that is too low cuts the last lines.
    """
    parts: list[Any] = [rich.text.Text(headline(study, looks, at_once), style="bold")]
    active = [run for run in looks if run.status == "running"]
    if active:
        parts.append(_active(active))
    failed = [run for run in looks if run.status in FAILED]
    if failed:
        table = plain_table("failed", "seed", "why", left=("why",))
        for run in failed[:MOST_FAILED]:
            why = rich.text.Text(f"{run.status}: {run.message}", style="red")
            table.add_row(run.planned.cell, str(run.planned.seed), why)
        parts.append(table)
        if len(failed) > MOST_FAILED:
            parts.append(f" {len(failed) - MOST_FAILED} more failed")
    parts.append(_backbones(looks))
    return rich.console.Group(*parts)


def watch(study: str, planned: list[Planned]) -> list[Look]:
    """Shows a study until all its runs have ended, or Ctrl-C; without a terminal once. The last look."""
    console = table_console()
    looks = [look(run) for run in planned]
    if not console.is_terminal:
        console.print(screen(study, looks), markup=False)
        return looks
    try:
        with rich.live.Live(screen(study, looks), console=console, auto_refresh=False) as live:
            while any(run.status in OPEN for run in looks):
                time.sleep(EVERY)
                looks = _looked_again(looks)
                live.update(screen(study, looks), refresh=True)
    except (KeyboardInterrupt, Preempted):
        pass  # the view ends; the study goes on
    return looks


@contextmanager
def following(study: str, planned: list[Planned]) -> Iterator[None]:
    """Show a sweep of this process or of those that it starts: a live view, or a line a run in a log file.

    On a terminal the runs print nothing themselves, into a log file only warnings. After each stage, the
    answer so far is printed.
    """
    console, ended = table_console(), threading.Event()
    is_live = console.is_terminal and not console.is_dumb_terminal
    show = _show if is_live else _report
    view = threading.Thread(target=show, args=(console, ended, _Sweep(study, planned)), name="live view")
    os.environ[SILENT] = NO_LINES if is_live else BRIEF
    view.start()
    try:
        yield
    finally:
        ended.set()
        view.join()
        os.environ.pop(SILENT, None)


class _Sweep:
    """The runs of a sweep as they were when last looked at."""

    def __init__(self, study: str, planned: list[Planned]) -> None:
        self.study = study
        self.looks = [look(run) for run in planned]
        self.at_once = 0
        """The most runs that have been seen running; between two runs there are fewer."""
        self._open_stages = [*dict.fromkeys(run.stage for run in planned if run.stage)]

    def look_again(self) -> list[Look]:
        """Return the runs that have ended since."""
        before, self.looks = self.looks, _looked_again(self.looks)
        self.at_once = max(self.at_once, sum(run.status == "running" for run in self.looks))
        changed = zip(before, self.looks, strict=True)
        return [now for then, now in changed if then.status in OPEN and now.status in ENDED]

    def ended_stage(self) -> str:
        """Return the next stage whose runs have all ended, once; empty if there is none."""
        stage = next(iter(self._open_stages), None)
        if stage is None or any(run.status in OPEN for run in self.looks if run.planned.stage == stage):
            return ""
        return self._open_stages.pop(0)

    def answer(self) -> str:
        """Return what the analysis concludes from the runs so far; empty if there is nothing to compare."""
        runs = self.looks[0].planned.folder.parents[2]
        words = [f"study={self.study}", f"runs={runs}"]
        return run_python(["-m", "archbench.analysis.answer", *words], capture=True).stdout.strip()


def _show(console: rich.console.Console, ended: threading.Event, sweep: _Sweep) -> None:
    def view() -> rich.console.Group:
        return screen(sweep.study, sweep.looks, sweep.at_once)

    with rich.live.Live(view(), console=console, auto_refresh=False, transient=True) as live:
        while not ended.wait(EVERY):
            sweep.look_again()
            if stage := sweep.ended_stage():
                console.print(f"After {stage}:\n{sweep.answer()}", markup=False, highlight=False)
            live.update(view(), refresh=True)


def _report(_: rich.console.Console, ended: threading.Event, sweep: _Sweep) -> None:
    printed, is_last = time.monotonic(), False
    while not is_last:
        is_last = ended.wait(EVERY)  # the runs that end last have their lines, too
        for run in sweep.look_again():
            took = f"{run.score or run.message}, {clock(run.seconds)} of training"
            told = f"{run.status}: {took}" if run.status in FAILED else took
            print(f"[{run.planned.cell} s{run.planned.seed}] {told}; {_progress(sweep)}", flush=True)
            printed = time.monotonic()
        if stage := sweep.ended_stage():
            print(f"After {stage}:\n{sweep.answer()}", flush=True)
        if time.monotonic() - printed > QUIET:
            print(_progress(sweep), flush=True)
            printed = time.monotonic()


def _progress(sweep: _Sweep) -> str:
    return headline(sweep.study, sweep.looks, sweep.at_once)


def _looked_again(looks: list[Look]) -> list[Look]:
    return [run if run.status == "complete" else look(run.planned) for run in looks]


def _fraction_done(looks: list[Look]) -> float:
    return sum(1.0 if run.status in ENDED else run.fraction_done for run in looks) / len(looks)


def _backbones(looks: list[Look]) -> rich.table.Table:
    groups = {status: "failed" if status in FAILED else str(status) for status in (*ENDED, *OPEN)}
    names = [n for n in dict.fromkeys(groups.values()) if any(groups[run.status] == n for run in looks)]
    table = plain_table("backbone", *names, "training")
    for backbone in dict.fromkeys(run.planned.backbone for run in looks):
        of_backbone = [run for run in looks if run.planned.backbone == backbone]
        counts = Counter(groups[run.status] for run in of_backbone)
        cells = [rich.text.Text(str(counts[name] or ""), style=STYLES.get(name, "")) for name in names]
        table.add_row(backbone, *cells, f"{_fraction_done(of_backbone):.0%}")
    return table


def _active(looks: list[Look]) -> rich.table.Table:
    table = plain_table("running", "seed", "done", "loss", "tokens/s", "ETA")
    for run in looks:
        train, left = run.train, run.seconds_left
        table.add_row(
            run.planned.cell,
            str(run.planned.seed),
            rich.text.Text(f"{run.fraction_done:.0%}", style="cyan"),
            "" if train is None else f"{train.loss:.4f}",
            "" if train is None else count(train.tokens_per_second),
            "" if left is None else clock(left),
        )
    return table


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
