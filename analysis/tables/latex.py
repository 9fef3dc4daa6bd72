"""The tables of a study for a paper: LaTeX, in the style of booktabs."""

from __future__ import annotations

import re

from archbench.analysis.tables.body import Body
from archbench.analysis.tables.study_tables import COLUMNS_NOTE, StudyTables
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


def render_latex(tables: StudyTables) -> str:
    """Return a table for each task and scale. Bold: no ranked model of its type is better."""
    parts = [r"% Needs \usepackage{booktabs} and, as the tables are wide, \usepackage{graphicx}."]
    for table in tables.tasks:
        notes = [*table.answers, *tables.joined]
        notes += [f"Warning: {warning}." for warning in tables.warnings]
        notes += [*table.notes, *table.compared, *[COLUMNS_NOTE] * bool(table.compared)]
        notes.append("Bold: no ranked model of its likelihood type is better.")
        caption = f"{table.title}. {table.held_equal} {tables.counts}"
        body, _ = table.body.narrow()
        label = f"tab:{table.task}-{table.scale}"
        parts.append(_table(caption, label, body, notes))
    return "\n\n".join(parts) + "\n"


def _rows(body: Body) -> list[str]:
    lines: list[str] = []
    group = None
    for row in body.rows:
        if row.group != group:
            lines += [r"\midrule"] * bool(lines)
            heading = rf"\multicolumn{{{len(body.columns)}}}{{l}}{{\emph{{{escape(row.group)}}}}} \\"
            lines += [heading] * bool(row.group)
        group = row.group
        name, *cells = map(escape, row.cells)
        rank = row.source["rank"]
        if isinstance(rank, str) and rank.split("-")[0] == "1":
            name = rf"\textbf{{{name}}}"
        if row.note:
            spanned = len(body.columns) - len(row.cells)
            cells.append(rf"\multicolumn{{{spanned}}}{{l}}{{{escape(row.note)}}}")
        lines.append(" & ".join([name, *cells]) + r" \\")
    return lines


def _table(caption: str, label: str, body: Body, notes: list[str]) -> str:
    alignment = "".join("l" if column.left else "r" for column in body.columns)
    return "\n".join(
        [
            r"\begin{table}", r"\centering", rf"\caption{{{escape(caption)}}}",
            rf"\label{{{re.sub(r'[^A-Za-z0-9:-]', '-', label)}}}", r"\resizebox{\linewidth}{!}{%",
            rf"\begin{{tabular}}{{{alignment}}}", r"\toprule",
            " & ".join(escape(column.head) for column in body.columns) + r" \\", r"\midrule",
            *_rows(body),
            r"\bottomrule", r"\end{tabular}}",
            *(rf"\par\footnotesize {escape(note)}" for note in notes), r"\end{table}",
        ]
    )  # fmt: skip
