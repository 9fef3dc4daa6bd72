"""Console output of a run: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import copy
import datetime
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import rich.box
import rich.cells
import rich.console
import rich.progress
import rich.table
import rich.text

from archbench.experiments.runtime.secrets import redact

SILENT = "ARCHBENCH_SILENT"
"""Variable of the environment: what a run of a sweep leaves to the view of the sweep."""
NO_LINES, BRIEF = "all", "lines"
"""Values of it: a run prints nothing, as the terminal has the live view; or only lines that begin as
``KEPT``, as a log file gets a line for each run."""
KEPT = ("warning: ", "already complete")
"""Beginnings of lines that a log file gets from each run."""
WIDTH = 80
"""Most columns of a line of text and tables, on a terminal and in a file."""
TEXT_WIDTH = 22
"""Columns of a text in a table from which it may be wrapped."""
STYLES = {
    "done": "green",
    "complete": "green",
    "running": "cyan",
    "begun": "cyan",
    "stored": "green",
} | dict.fromkeys(("diverged", "oom", "failed", "refused", "unreadable"), "red")
"""Colours of statuses on a terminal."""


def table_console() -> rich.console.Console:
    """Return a console for lines of at most ``WIDTH`` columns, with colours only on a terminal."""
    console = rich.console.Console(highlight=False)
    width = min(WIDTH, console.width) if console.is_terminal else WIDTH
    return rich.console.Console(highlight=False, width=width)


def plain_table(first: str, *others: str, left: tuple[str, ...] = ()) -> rich.table.Table:
    """Return a table without rows or borders. Cells that are too long are continued in the next line.

    Args:
        first, others: heads of the columns; those without text are aligned at the right.
        left: those of the others with text, aligned at the left.
    """
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, show_edge=False, padding=(0, 0), pad_edge=False)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="left" if name in left else "right", overflow="fold")
    return table


def fit(table: rich.table.Table, keys: int = 1, width: int = WIDTH) -> list[rich.table.Table]:
    """Return a table as tables of at most ``width`` columns; columns without room follow in further tables.

    Numbers are not wrapped; heads and text are.

    Args:
        table: its numeric columns are aligned at the right.
        keys: the number of first columns, which are repeated in each table.
        width: columns of the terminal.
    """
    _, right, _, left = table.padding
    between = right + left + (table.box is not None)
    room = width - 2 * table.show_edge + (not table.show_edge)
    parts = [table.columns[:keys]]
    for column in table.columns[keys:]:
        if sum(_least(part) + between for part in [*parts[-1], column]) > room and len(parts[-1]) > keys:
            parts.append(table.columns[:keys])
        parts[-1] = [*parts[-1], column]
    return [_with_widths(table, columns, room - between * len(columns)) for columns in parts]


def _widest(texts: Iterable[object]) -> int:
    lines = [line for text in texts for line in str(text).splitlines()]
    return max(map(rich.cells.cell_len, lines), default=1)


def _least(column: rich.table.Column) -> int:
    """Return the least width of a column: its values, or a part of its text, and the words of its head."""
    longest = _widest(column.cells)
    words = _widest(str(column.header).split())
    return max(words, longest if column.justify == "right" else min(longest, TEXT_WIDTH))


def _with_widths(table: rich.table.Table, columns: list[rich.table.Column], room: int) -> rich.table.Table:
    """Return a table of some columns that share ``room``: their least widths, then as much as they need."""
    part = copy.copy(table)
    part.columns = [copy.copy(column) for column in columns]
    left = room - sum(map(_least, columns))
    for column in part.columns:
        least, full = _least(column), _widest([column.header, *column.cells])
        more = max(0, min(full - least, left))
        column.width, column.no_wrap, left = least + more, False, left - more
    return part


def print_tables(*parts: rich.console.RenderableType, keys: int = 1) -> None:
    """Print tables, by ``fit``, and text in lines of at most ``WIDTH`` columns."""
    console = table_console()
    for part in parts:
        if isinstance(part, rich.console.Group):
            print_tables(*part.renderables, keys=keys)
        elif isinstance(part, rich.table.Table):
            if part.title:  # on a line of its own: a title in a table is wrapped at the width of the table
                console.print(part.title, style="italic", markup=False)
            for table in fit(part, keys, console.width):
                table.title = None
                console.print(table)
        else:
            console.print(part, markup=False)


def coloured(status: str) -> rich.text.Text:
    """Return a status, which may be followed by its reason, in its colour."""
    return rich.text.Text(status, style=STYLES.get(re.split(r"[:,] ", status)[0], ""))


def clock(seconds: float) -> str:
    """Seconds as 0:07, 3:20 or 2:05:00; ``-`` where there are none."""
    if not math.isfinite(seconds):
        return "-"
    minutes, second = divmod(round(abs(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    sign = "-" * (round(seconds) < 0)
    return f"{sign}{hours}:{minutes:02d}:{second:02d}" if hours else f"{sign}{minutes}:{second:02d}"


def count(value: float) -> str:
    """Format a value with three digits: 950, 12.3k, 4.56M, 1.2G, 3T, 4.2e22; ``-`` if it is not finite."""
    if not math.isfinite(value):
        return "-"
    value = float(f"{value:.3g}")  # rounded first, so that 999,999 is 1M and not 1000k
    if abs(value) >= 1e18:  # FLOPs of large models
        return f"{value:g}".replace("e+", "e")
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value + 0.0:g}"  # without the sign of -0.0


def plural(quantity: float, noun: str) -> str:
    """Return a count with its noun, as in 1 run, 2 runs, 1,024 tokens, 3 passages of 8 tokens."""
    head, space, rest = noun.partition(" of ")
    ending = "" if quantity == 1 else "es" if head.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{quantity:,.0f} {head}{ending}{space}{rest}"


def plus_minus(error: float | str | None, digits: int = 4) -> str:
    """Return a standard error as it follows its value; empty if it is None, as for a single item."""
    return f" ± {error:.{digits}f}" if isinstance(error, int | float) and math.isfinite(error) else ""


def standard_error_over(clusters: int, noun: str) -> str:
    """Describe the units of a standard error, or the reason why it is missing."""
    kind = "no standard error, of" if clusters < 2 else "standard error over"
    return f"{kind} {plural(clusters, noun)}"


class _Screen(rich.console.Console):
    """A console that ignores a closed pipe: further output is lost, and the run continues."""

    def on_broken_pipe(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Console:
    """Prints the lines of one run, each led by the run's name."""

    def __init__(self, name: str, *, quiet: bool = False) -> None:
        """``quiet`` disables printing, because only the process of rank 0 prints."""
        self.name = name
        quiet |= os.environ.get(SILENT) == NO_LINES
        self._is_brief = os.environ.get(SILENT) == BRIEF
        self._file: Path | None = None
        self._rich = _Screen(highlight=False, soft_wrap=True, quiet=quiet)

    def keep(self, path: Path) -> None:
        """Also append the lines from now on to a file, each with the time."""
        self._file = path

    def log(self, text: str) -> None:
        """Print a line, with secrets removed."""
        text = redact(text)
        if not self._is_brief or text.startswith(KEPT):
            with contextlib.suppress(OSError):
                self._rich.print(f"[{self.name}] {text}", markup=False)
                sys.stdout.flush()
        self._write(text)

    def warn(self, text: str) -> None:
        """Print a line to standard error, with secrets removed."""
        text = redact(text)
        if not self._rich.quiet:
            with contextlib.suppress(OSError):
                sys.stderr.write(f"[{self.name}] {text}\n")
        self._write(text)

    def _write(self, text: str) -> None:
        """Append a line to the file of ``keep``."""
        if self._file is not None:
            timestamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
            with (
                contextlib.suppress(OSError),
                self._file.open("a", encoding="utf-8", errors="backslashreplace") as file,
            ):
                file.write(f"{timestamp} {text}\n")

    def step(self, step: int, total: int, row: Mapping[str, float], seconds_left: float) -> None:
        """Print the line of a logged step; ``metrics.jsonl`` has the learning rate and more."""
        self.log(
            f"{step}/{total} loss {row['loss']:.3f} "
            f"{count(row['tokens_per_second'])} tok/s ETA {clock(seconds_left)}"
        )

    @contextmanager
    def progress(self, total: int) -> Iterator[Callable[[int], None]]:
        """Yield a function to call with the number of the step reached."""
        if self._rich.quiet or not self._rich.is_terminal:
            yield lambda step: None
            return
        columns = (*rich.progress.Progress.get_default_columns(), rich.progress.TimeElapsedColumn())
        with rich.progress.Progress(*columns, console=self._rich, transient=True) as bar:
            task = bar.add_task(self.name, total=total)
            yield lambda step: bar.update(task, completed=step)
