"""The tables of a study as Markdown."""

from __future__ import annotations

from archbench.analysis.stats.grid import Grid
from archbench.analysis.tables import markdown
from archbench.analysis.tables.body import Body
from archbench.analysis.tables.markdown import escaped
from archbench.analysis.tables.study_tables import COLUMNS_NOTE, StudyTables


def render_markdown(tables: StudyTables, *, wide: bool = False) -> str:
    """Return the tables of a study; the same runs always give the same text."""
    lines = [f"- {escaped(line)}" for line in (*tables.answers, tables.counts, *tables.joined)]
    lines += [f"- Warning: {escaped(w)}." for w in tables.warnings]
    for table in tables.tasks:
        lines += ["", f"## {escaped(table.title)}", "", escaped(table.held_equal), ""]
        lines += markdown_table(table.body if wide else table.body.narrow()[0])
        lines += ["", *(f"- {escaped(line)}" for line in (*table.notes, *table.compared))]
        for grid in table.further:
            lines += ["", *_grid(grid, 3)]
    for grid in tables.over_tasks:
        lines += ["", *_grid(grid, 2)]
    lines += ["", COLUMNS_NOTE]
    lines += ["", "## Published"] * bool(tables.published)
    lines += [f"- {escaped(line)}" for line in tables.published]
    return "\n".join(lines) + "\n"


def _grid(grid: Grid, level: int) -> list[str]:
    """Return a table of text with its title as a heading of a level."""
    lines = [f"{'#' * level} {escaped(grid.title)}", "", *markdown.table(grid.head, grid.rows)]
    return [*lines, *["", escaped(grid.note)] * bool(grid.note)]


def markdown_table(body: Body) -> list[str]:
    """Return the lines of one table."""
    lines = [
        markdown.row([column.head for column in body.columns]),
        "|" + "".join(" :-- |" if column.left else " --: |" for column in body.columns),
    ]
    group, width = "", len(body.columns)
    for row in body.rows:
        if row.group not in ("", group):
            lines.append(markdown.row([f"*{escaped(row.group)}*", *[""] * (width - 1)]))
        group = row.group
        cells = [escaped(cell) for cell in row.filled]
        lines.append(markdown.row([*cells, *[""] * (width - len(cells))]))
    return lines
