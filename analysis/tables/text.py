"""The tables of a study as text: for the terminal, for the README, and as Markdown.

Sentences come first, then warnings, then a table for each task and scale. ``render_tables`` and
``render_markdown`` are pure functions of the results frame, without colour, so that the output for the same
runs is always identical.
"""

from __future__ import annotations

import textwrap
from io import StringIO

import pandas as pd
from rich.console import Console, Group, RenderableType
from rich.text import Text

from archbench.analysis.load.scale_order import in_table, scale_groups
from archbench.analysis.stats import against_variable as against
from archbench.analysis.stats import likelihood_gap as gap
from archbench.analysis.stats import solve_rates as solved
from archbench.analysis.stats.arms import study_setting
from archbench.analysis.stats.capacity import capacity_grids
from archbench.analysis.stats.computed import Computed
from archbench.analysis.stats.extra_tests import further_grid, published
from archbench.analysis.stats.grid import Grid
from archbench.analysis.stats.targets.performance_profile import across_tasks, profile_grid
from archbench.analysis.stats.targets.steps_to_loss import steps_grid
from archbench.analysis.stats.verdicts.verdict import BETTER, WORSE
from archbench.analysis.stats.versus_baseline import with_differences
from archbench.analysis.tables import markdown
from archbench.analysis.tables.body import Row, table_rows
from archbench.analysis.tables.columns import Column, fitted, table_columns
from archbench.analysis.tables.compute import compute_grids, over_compute
from archbench.analysis.tables.decision_accuracy import decision_grids
from archbench.analysis.tables.headings import (
    counts_line,
    held_equal,
    how_compared,
    item_line,
    joined_lines,
    reference_line,
    scored_line,
    title,
)
from archbench.analysis.tables.markdown import escaped
from archbench.analysis.tables.sentences import answers
from archbench.analysis.tables.slices import recall_grid
from archbench.analysis.tables.terminal import grid_parts, wrapped
from archbench.experiments.runtime.console import WIDTH

LEAST = 24
"""Minimum width of a note in a table."""
GAP = "  "
STYLES = {BETTER: "green", WORSE: "red"}
"""Colours of verdicts on a terminal."""
COLUMNS_NOTE = (
    "score: mean over n seeds with its 95% interval over seeds. verdict: against the baseline of the "
    "likelihood type (study.baseline, else its best model), with the difference and its interval; + is "
    "better. parameters: active/total. state: of decoding at 2048 tokens."
)  # fmt: skip


def render_tables(frame: pd.DataFrame, *, wide: bool = False, computed: Computed | None = None) -> str:
    """Return the tables of a study as plain text. A pure function of the frame.

    Args:
        frame: from ``analysis.load.study.load_study``.
        wide: whether tables have all columns, regardless of ``WIDTH``.
        computed: what was computed of the frame before.
    """
    text = StringIO()
    # The height is set because Rich ignores a width without a height on a dumb terminal.
    console = Console(file=text, width=WIDTH, height=1000, color_system=None, force_terminal=False)
    console.print(study_text(computed or Computed(frame), wide=wide), crop=False)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip("\n") + "\n"


def study_text(computed: Computed, *, wide: bool = False) -> RenderableType:
    """Return the tables of a study for a Rich console."""
    frame, arms, pairs = computed.frame, computed.arms, computed.pairs
    sentences = (*over_compute(frame, computed.multipliers), *answers(arms))
    parts: list[RenderableType] = [wrapped(line) for line in sentences]
    parts += [wrapped(line) for line in ("", counts_line(frame), *joined_lines(frame))]
    parts += [wrapped(f"Warning: {w}.", style="yellow") for w in computed.warnings]
    for (task, scale), rows in scale_groups(arms):
        runs = in_table(frame, task, scale)
        parts += [wrapped(f"\n{title(rows)}", style="bold"), wrapped(held_equal(runs)), Text("")]
        lines, left_out = grid_lines(rows, wide=wide)
        parts += [*lines, Text("")]
        parts += [wrapped(line) for line in (*reference_line(rows), *scored_line(runs), *item_line(rows))]
        parts += [wrapped(line) for line in how_compared(in_table(pairs, task, scale))]
        parts += [wrapped(f"No room for {', '.join(left_out)}: add --wide.")] * bool(left_out)
        parts += [part for grid in more_tables(computed, str(task), str(scale)) for part in grid_parts(grid)]
    parts += [part for grid in grids_over_tasks(computed) for part in grid_parts(grid)]
    parts += [wrapped(f"\n{COLUMNS_NOTE}")]
    return Group(*parts, *(wrapped(f"\nPublished: {line}") for line in published(frame)))


def grid_lines(rows: pd.DataFrame, *, wide: bool = False) -> tuple[list[Text], list[str]]:
    """Return the lines of one table, and the headers of the columns that did not fit."""
    rows = rows[rows["kind"] == "arm"]
    columns = table_columns(rows, wide=wide)
    left_out: list[str] = []
    if not wide:
        columns, left_out = fitted(
            columns, lambda chosen: sum(_widths(table_rows(rows, chosen), chosen)) + _gaps(chosen)
        )
    body = table_rows(rows, columns)
    widths = _widths(body, columns)
    total = sum(widths) + _gaps(columns)
    lines = [_line([column.head for column in columns], columns, widths), Text("─" * total)]
    group = body[0].group if body else ""
    lines += [Text(group, style="italic")] * bool(group)
    for row in body:
        if row.group != group:
            group = row.group
            lines += [Text(group, style="italic")] if group else [Text("")]
        line = _line(row.cells, columns, widths)
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
    return lines, left_out


def _gaps(columns: list[Column]) -> int:
    return len(GAP) * (len(columns) - 1)


def _widths(body: list[Row], columns: list[Column]) -> list[int]:
    """Return the width of each column. Notes are not counted, because they are wrapped."""
    texts = [[column.head] for column in columns]
    for row in body:
        for cells, cell in zip(texts, row.cells, strict=False):
            cells.append(cell)
    return [max(map(len, cells)) for cells in texts]


def _line(cells: list[str], columns: list[Column], widths: list[int]) -> Text:
    """Return the cells of a row, aligned in their columns."""
    aligned = zip(cells, columns, widths, strict=False)
    return Text(GAP.join(c.ljust(w) if k.left else c.rjust(w) for c, k, w in aligned))


def render_markdown(frame: pd.DataFrame, *, wide: bool = False, computed: Computed | None = None) -> str:
    """Return the same tables as Markdown."""
    computed = computed or Computed(frame)
    arms, pairs = computed.arms, computed.pairs
    sentences = [*over_compute(frame, computed.multipliers), *answers(arms)]
    sentences += [counts_line(frame), *joined_lines(frame)]
    lines = [f"- {escaped(line)}" for line in sentences]
    lines += [f"- Warning: {escaped(w)}." for w in computed.warnings]
    for (task, scale), rows in scale_groups(arms):
        runs = in_table(frame, task, scale)
        lines += ["", f"## {escaped(title(rows))}", "", escaped(held_equal(runs)), ""]
        lines += markdown_table(rows, wide=wide)
        notes = (*scored_line(runs), *item_line(rows), *how_compared(in_table(pairs, task, scale)))
        lines += ["", *(f"- {escaped(line)}" for line in notes)]
        for grid in more_tables(computed, str(task), str(scale)):
            lines += ["", f"### {escaped(grid.title)}", "", *markdown.table(grid.head, grid.rows)]
            lines += ["", escaped(grid.note)] * bool(grid.note)
    for grid in grids_over_tasks(computed):
        lines += ["", f"## {escaped(grid.title)}", "", *markdown.table(grid.head, grid.rows), "", grid.note]
    lines += ["", COLUMNS_NOTE]
    lines += ["", "## Published"] * bool(published(frame))
    lines += [f"- {escaped(line)}" for line in published(frame)]
    return "\n".join(lines) + "\n"


def render_scores(frame: pd.DataFrame) -> str:
    """Return as Markdown the table of each task and the gap between likelihood types, without sentences."""
    lines: list[str] = []
    for (task, scale), rows in scale_groups(with_differences(frame)):
        runs = frame[(frame["task"] == task) & (frame["scale"] == scale)]
        lines += [f"## {escaped(title(rows))}", "", *markdown_table(rows[rows["kind"] == "arm"]), ""]
        lines += [escaped(" ".join([held_equal(runs), *reference_line(rows)])), ""]
        if not (gaps := gap.gaps(runs)).empty:
            grid = gap.gap_grid(gaps)
            lines += [f"### {escaped(grid.title)}", "", *markdown.table(grid.head, grid.rows), ""]
    return "\n".join([*lines, COLUMNS_NOTE]) + "\n"


def markdown_table(rows: pd.DataFrame, *, wide: bool = False) -> list[str]:
    """Return the lines of one table, with all columns or with the ``MOST_COLUMNS`` of the terminal."""
    columns = table_columns(rows, wide=wide)
    if not wide:
        columns, _ = fitted(columns, lambda selected: 0)
    lines = [
        markdown.row([column.head for column in columns]),
        "|" + "".join(" :-- |" if column.left else " --: |" for column in columns),
    ]
    group = ""
    for row in table_rows(rows, columns):
        if row.group not in ("", group):
            lines.append(markdown.row([f"*{escaped(row.group)}*", *[""] * (len(columns) - 1)]))
        group = row.group
        cells = [escaped(cell) for cell in row.filled]
        lines.append(markdown.row([*cells, *[""] * (len(columns) - len(cells))]))
    return lines


def grids_over_tasks(computed: Computed) -> list[Grid]:
    """Return the tables about multiple tasks or budgets: multipliers, decisions, profiles, capacities."""
    frame = computed.frame
    profiles = [profile_grid(rows) for _, rows in scale_groups(across_tasks(frame), ["scale"])]
    multipliers = compute_grids(computed.multipliers, study_setting(frame, "explains"))
    decisions = decision_grids(computed.decisions)
    return [*multipliers, *decisions, *profiles, *capacity_grids(computed.ladders)]


def more_tables(computed: Computed, task: str, scale: str) -> list[Grid]:
    """Return the further tables about one task.

    The study configures them, except for recall from the window, which every text task has.
    """
    grids = []
    if not (tests := in_table(computed.further, task, scale)).empty:
        heading = title(in_table(computed.table, task, scale))
        grids.append(further_grid(tests, f"Extra evaluations, {heading}"))
    if not (rows := in_table(computed.gaps, task, scale)).empty:
        grids.append(gap.gap_grid(rows))
    if not (rows := in_table(computed.against, task, scale)).empty:
        grids.append(against.against_grid(rows))
    if not (rows := in_table(computed.solve_rates, task, scale)).empty:
        grids.append(solved.solved_grid(rows))
    if (recall := recall_grid(in_table(computed.slices, task, scale))) is not None:
        grids.append(recall)
    if (steps := steps_grid(in_table(computed.frame, task, scale), task, scale)) is not None:
        grids.append(steps)
    return grids
