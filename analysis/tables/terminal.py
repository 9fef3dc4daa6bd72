"""The tables of a study on a terminal, in lines of at most ``WIDTH`` columns; sentences come first."""

from __future__ import annotations

import textwrap
from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.text import Text

from archbench.analysis.stats.grid import Grid
from archbench.analysis.stats.verdicts.verdict import BETTER, WORSE
from archbench.analysis.tables.body import Body
from archbench.analysis.tables.columns import Column
from archbench.analysis.tables.study_tables import COLUMNS_NOTE, StudyTables, TaskTable
from archbench.experiments.runtime.console import WIDTH, fit, plain_table

LEAST = 24
"""Minimum width of a note in a table."""
GAP = "  "
STYLES = {BETTER: "green", WORSE: "red"}
"""Colours of verdicts on a terminal."""


def render_tables(tables: StudyTables, *, wide: bool = False) -> str:
    """Return the tables of a study as plain text without colour; the same runs always give the same text.

    Args:
        tables: of the study.
        wide: whether tables have all columns, regardless of ``WIDTH``.
    """
    text = StringIO()
    # The height is set because Rich ignores a width without a height on a dumb terminal.
    console = Console(file=text, width=WIDTH, height=1000, color_system=None, force_terminal=False)
    console.print(study_text(tables, wide=wide), crop=False)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip("\n") + "\n"


def study_text(tables: StudyTables, *, wide: bool = False) -> RenderableType:
    """Return the tables of a study for a Rich console."""
    parts: list[RenderableType] = [
        wrapped(line) for line in (*tables.answers, "", tables.counts, *tables.joined)
    ]
    parts += [wrapped(f"Warning: {w}.", style="yellow") for w in tables.warnings]
    parts += [part for table in tables.tasks for part in _task_parts(table, wide=wide)]
    parts += [part for grid in tables.over_tasks for part in grid_parts(grid)]
    parts += [wrapped(f"\n{COLUMNS_NOTE}")]
    return Group(*parts, *(wrapped(f"\nPublished: {line}") for line in tables.published))


def _task_parts(table: TaskTable, *, wide: bool) -> list[RenderableType]:
    """Return the table of one task, with what is said of it above and below."""
    body = table.body.models()
    body, left_out = (body, list[str]()) if wide else body.narrow(_line_width)
    parts: list[RenderableType] = [
        wrapped(f"\n{table.title}", style="bold"), wrapped(table.held_equal), Text(""), *body_lines(body),
        Text(""),
    ]  # fmt: skip
    parts += [wrapped(line) for line in (*table.references, *table.notes, *table.compared)]
    parts += [wrapped(f"No room for {', '.join(left_out)}: add --wide.")] * bool(left_out)
    return [*parts, *(part for grid in table.further for part in grid_parts(grid))]


def body_lines(body: Body) -> list[Text]:
    """Return the lines of one table: head, rule, headings of groups, and rows."""
    widths = _widths(body)
    total = _line_width(body)
    lines = [_line([column.head for column in body.columns], body.columns, widths), Text("─" * total)]
    group = body.rows[0].group if body.rows else ""
    lines += [Text(group, style="italic")] * bool(group)
    for row in body.rows:
        if row.group != group:
            group = row.group
            lines += [Text(group, style="italic")] if group else [Text("")]
        line = _line(row.cells, body.columns, widths)
        line.highlight_words([verdict := str(row.source["verdict"])], STYLES.get(verdict, ""))
        if row.note:  # wrapped, instead of the verdict and the columns after it
            indent = sum(widths[: len(row.cells)]) + len(GAP) * len(row.cells)
            first, *rest = textwrap.wrap(row.note, max(total - indent, LEAST)) or [""]
            line = Text(
                "\n".join([line.plain.ljust(indent) + first, *(" " * indent + part for part in rest)])
            )
        lines.append(line)
    for line in lines:
        line.no_wrap, line.overflow = True, "ignore"
    return lines


def _line_width(body: Body) -> int:
    return sum(_widths(body)) + len(GAP) * (len(body.columns) - 1)


def _widths(body: Body) -> list[int]:
    """Return the width of each column. Notes are not counted, because they are wrapped."""
    widths = [len(column.head) for column in body.columns]
    for row in body.rows:
        for place, cell in enumerate(row.cells):
            widths[place] = max(widths[place], len(cell))
    return widths


def _line(cells: list[str], columns: list[Column], widths: list[int]) -> Text:
    """Return the cells of a row, aligned in their columns."""
    aligned = zip(cells, columns, widths, strict=False)
    return Text(GAP.join(c.ljust(w) if k.left else c.rjust(w) for c, k, w in aligned))


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
