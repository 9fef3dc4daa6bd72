"""Further tables of a study for the terminal, in lines of at most ``WIDTH`` columns."""

from __future__ import annotations

import textwrap

from rich.console import RenderableType
from rich.text import Text

from archbench.analysis.stats.grid import Grid
from archbench.experiments.runtime.console import WIDTH, fit, plain_table


def wrapped(line: str, style: str = "") -> Text:
    """Return a line wrapped at ``WIDTH``, with a hanging indent."""
    leading = "\n" * (len(line) - len(line.lstrip("\n")))
    text = textwrap.fill(line.lstrip("\n"), WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return Text(leading + text, style=style)


def grid_parts(grid: Grid) -> list[RenderableType]:
    """Return title, table and note. A table that is too wide is continued below with its other columns."""
    table = plain_table(grid.head[0], *grid.head[1:])
    for row in grid.rows:
        table.add_row(*map(Text, row))
    parts: list[RenderableType] = [Text(f"\n{grid.title}", style="bold")] * bool(grid.title)
    for index, part in enumerate(fit(table, grid.keys)):
        parts += [*[""] * bool(index), part]
    return [*parts, *[wrapped(grid.note)] * bool(grid.note)]
