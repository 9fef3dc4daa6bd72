"""The tables of a study for a paper: LaTeX, in the style of booktabs."""

from __future__ import annotations

import re

import pandas as pd

from analysis.stats.arms import TASK_SCALE, likelihood_group, matched_line
from analysis.stats.comparisons import comparisons
from analysis.stats.versus_baseline import DIFFERENCES_NOTE, difference_cells, with_differences
from analysis.stats.warnings import study_warnings
from analysis.tables.text import cells, counts_line, how_compared, title

HEAD = (
    "model", "score ($n$)", "likelihood", "rank", "gain over baseline ($n$)", "$p$", "verdict", "parameters",
    "FLOPs", "tokens", "tokens/s", "state",
)  # fmt: skip
SHOWN = (5, 6, 7, 9, 11)
"""Cells of the tables in the terminal that stand here too: active parameters, FLOPs, tokens, speed, state."""

ESCAPED = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#",
    "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$", "≤": r"$\leq$", "≥": r"$\geq$",
}  # fmt: skip


def escape(text: str) -> str:
    """Text as LaTeX prints it; a minus before a number becomes a real one, line ends become spaces."""
    escaped = "".join(ESCAPED.get(letter, letter) for letter in " ".join(text.split()))
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)


def render_latex(frame: pd.DataFrame) -> str:
    """A table for each task and scale. Bold: models that may be the best of their likelihood type."""
    arms, pairs = with_differences(frame), comparisons(frame)
    parts = [r"% Needs \usepackage{booktabs} and, as the tables are wide, \usepackage{graphicx}."]
    for (task, scale), rows in arms.groupby(TASK_SCALE, sort=True):
        here = pairs[(pairs["task"] == task) & (pairs["scale"] == scale)]
        notes = [f"Warning: {warning}." for warning in study_warnings(frame)]
        notes += [*how_compared(here, DIFFERENCES_NOTE), "Bold: may be the best of its likelihood type."]
        caption = f"{title(rows)}. {matched_line(frame)} {counts_line(frame)}"
        parts.append(_table(caption, f"tab:{task}-{scale}", _body(rows), notes))
    return "\n\n".join(parts) + "\n"


def _body(rows: pd.DataFrame) -> list[str]:
    lines, group = [], None
    for _, row in rows.iterrows():
        if group is not None and likelihood_group(row) != group:
            lines.append(r"\midrule")
        group, text = likelihood_group(row), cells(row)
        first, score, likelihood = (escape(cell) for cell in text[:3])
        if isinstance(row["rank"], str) and row["rank"].split("-")[0] == "1":
            first = rf"\textbf{{{first}}}"
        rank, *known = difference_cells(row)
        values = [first, score, likelihood, rank.replace("-", "--"), *map(escape, known)]
        lines.append(" & ".join([*values, *(escape(text[i]) for i in SHOWN)]) + r" \\")
    return lines


def _table(caption: str, label: str, body: list[str], notes: list[str]) -> str:
    return "\n".join(
        [
            r"\begin{table}", r"\centering", rf"\caption{{{escape(caption)}}}",
            rf"\label{{{re.sub(r'[^A-Za-z0-9:-]', '-', label)}}}", r"\resizebox{\linewidth}{!}{%",
            r"\begin{tabular}{lrlrrrl" + "r" * len(SHOWN) + "}", r"\toprule",
            " & ".join(HEAD) + r" \\", r"\midrule", *body, r"\bottomrule", r"\end{tabular}}",
            *(rf"\par\footnotesize {escape(note)}" for note in notes), r"\end{table}",
        ]
    )  # fmt: skip
