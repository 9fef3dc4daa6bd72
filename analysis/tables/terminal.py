"""Further tables of a study for the terminal, in lines of at most ``WIDTH`` columns."""

from __future__ import annotations

import textwrap
from dataclasses import replace

from rich.console import RenderableType
from rich.text import Text

from analysis.stats.grid import Grid
from experiments.runtime.console import WIDTH, plain_table


def wrapped(line: str, style: str = "") -> Text:
    """Return a line wrapped at ``WIDTH``, with a hanging indent."""
    leading = "\n" * (len(line) - len(line.lstrip("\n")))
    text = textwrap.fill(line.lstrip("\n"), WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return Text(leading + text, style=style)


def grid_parts(grid: Grid) -> list[RenderableType]:
    """Return title, table and note. A table that is too wide is continued below with its other columns."""
    parts: list[RenderableType] = [Text(f"\n{grid.title}", style="bold")] * bool(grid.title)
    for index, part in enumerate(split(grid)):
        table = plain_table(part.head[0], *part.head[1:])
        table.columns[0].min_width = min(_width(part, 0), WIDTH // 2)  # heads are wrapped before names
        for row in part.rows:
            table.add_row(*map(Text, row))
        parts += [*[""] * bool(index), table]
    return [*parts, *[wrapped(grid.note)] * bool(grid.note)]


def split(grid: Grid) -> list[Grid]:
    """Return a table as tables that fit ``WIDTH``, each with the first ``grid.keys`` columns."""
    widths = [_width(grid, column) + 1 for column in range(len(grid.head))]
    keys = list(range(grid.keys))
    parts = [list(keys)]
    for column in range(grid.keys, len(grid.head)):
        if sum(widths[i] for i in parts[-1]) + widths[column] > WIDTH + 1 and len(parts[-1]) > grid.keys:
            parts.append(list(keys))
        parts[-1].append(column)
    return [
        replace(grid, head=[grid.head[i] for i in part], rows=[[row[i] for i in part] for row in grid.rows])
        for part in parts
    ]


def _width(grid: Grid, column: int) -> int:
    """Return the width of a column: its longest cell, and the longest word of its head, which is wrapped."""
    words = grid.head[column].split() or [""]
    return max(max(map(len, words)), *(len(row[column]) for row in grid.rows), 1)
