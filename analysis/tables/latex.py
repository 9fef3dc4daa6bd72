"""The tables of a study for a paper: LaTeX, in the style of booktabs."""

from __future__ import annotations

import re

import pandas as pd

from archbench.analysis.load.scale_order import scale_groups
from archbench.analysis.stats.computed import Computed
from archbench.analysis.tables.body import table_rows
from archbench.analysis.tables.columns import Column, fitted, table_columns
from archbench.analysis.tables.headings import (
    counts_line,
    held_equal,
    how_compared,
    item_line,
    joined_lines,
    scored_line,
    title,
)
from archbench.analysis.tables.sentences import answers
from archbench.analysis.tables.text import COLUMNS_NOTE
from archbench.experiments.runtime.streams import printable

ESCAPED = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#",
    "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$", "≤": r"$\leq$", "≥": r"$\geq$",
    "∞": r"$\infty$",
}  # fmt: skip


def escape(text: str) -> str:
    """Return text escaped for LaTeX; a hyphen before a digit becomes a minus, line ends become spaces."""
    escaped = "".join(ESCAPED.get(letter, letter) for letter in " ".join(printable(text).split()))
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)


def render_latex(frame: pd.DataFrame, computed: Computed | None = None) -> str:
    """Return a table for each task and scale. Bold: no ranked model of its type is better."""
    computed = computed or Computed(frame)
    arms, pairs, warnings = computed.arms, computed.pairs, computed.warnings
    parts = [r"% Needs \usepackage{booktabs} and, as the tables are wide, \usepackage{graphicx}."]
    for (task, scale), rows in scale_groups(arms):
        table_pairs = pairs[(pairs["task"] == task) & (pairs["scale"] == scale)]
        runs = frame[(frame["task"] == task) & (frame["scale"] == scale)]
        notes = [*answers(rows), *joined_lines(frame)]
        notes += [f"Warning: {warning}." for warning in warnings]
        notes += [*scored_line(runs), *item_line(rows), *how_compared(table_pairs, COLUMNS_NOTE)]
        notes.append("Bold: no ranked model of its likelihood type is better.")
        caption = f"{title(rows)}. {held_equal(runs)} {counts_line(frame)}"
        columns, _ = fitted(table_columns(rows, wide=False), lambda selected: 0)
        parts.append(_table(caption, f"tab:{task}-{scale}", columns, _body(rows, columns), notes))
    return "\n\n".join(parts) + "\n"


def _body(rows: pd.DataFrame, columns: list[Column]) -> list[str]:
    lines: list[str] = []
    group = None
    for row in table_rows(rows, columns):
        if row.group != group:
            lines += [r"\midrule"] * bool(lines)
            heading = rf"\multicolumn{{{len(columns)}}}{{l}}{{\emph{{{escape(row.group)}}}}} \\"
            lines += [heading] * bool(row.group)
        group = row.group
        name, *cells = map(escape, row.cells)
        rank = row.source["rank"]
        if isinstance(rank, str) and rank.split("-")[0] == "1":
            name = rf"\textbf{{{name}}}"
        if row.note:
            spanned = len(columns) - len(row.cells)
            cells.append(rf"\multicolumn{{{spanned}}}{{l}}{{{escape(row.note)}}}")
        lines.append(" & ".join([name, *cells]) + r" \\")
    return lines


def _table(caption: str, label: str, columns: list[Column], body: list[str], notes: list[str]) -> str:
    alignment = "".join("l" if column.left else "r" for column in columns)
    return "\n".join(
        [
            r"\begin{table}", r"\centering", rf"\caption{{{escape(caption)}}}",
            rf"\label{{{re.sub(r'[^A-Za-z0-9:-]', '-', label)}}}", r"\resizebox{\linewidth}{!}{%",
            rf"\begin{{tabular}}{{{alignment}}}", r"\toprule",
            " & ".join(escape(column.head) for column in columns) + r" \\", r"\midrule", *body,
            r"\bottomrule", r"\end{tabular}}",
            *(rf"\par\footnotesize {escape(note)}" for note in notes), r"\end{table}",
        ]
    )  # fmt: skip
