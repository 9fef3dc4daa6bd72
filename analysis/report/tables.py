"""Tables of the report as text; the templates write them as HTML."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.style import styles
from archbench.analysis.load.arm_names import config_differences
from archbench.analysis.load.scale_order import TASK_SCALE, scale_groups, task_label
from archbench.analysis.stats.grid import Grid
from archbench.analysis.tables.body import REFERENCES, Body
from archbench.analysis.tables.columns import VERDICT, Column
from archbench.analysis.tables.study_tables import StudyTables

PROVENANCE = {
    "git_commit": "commit", "git_dirty": "uncommitted changes", "fingerprint": "data",
    "device_name": "device", "device_processor": "processor", "device_threads": "threads",
    "device_precision": "precision", "device_instruction_set": "instruction set of kernels",
    "device_compiler": "compiler of kernels", "device_pytorch_instruction_set": "instruction set of PyTorch",
    "device_library_settings": "settings of libraries", "versions": "versions", "kernels": "kernels",
    "command": "command",
}  # fmt: skip
"""Columns of the frame with the provenance of a run, with their titles."""


STATISTICS = ("likelihood", "rank", "p", "detectable", "seeds to decide", "error over items")
"""Heads of the columns in a table of scores, next to score and verdict; a table of costs has the others."""


@dataclass(frozen=True, kw_only=True)
class ScoreRow:
    """A model's row in a table of scores."""

    css: str
    """Classes of the row: a reference, the first of its likelihood type."""
    colour: str
    """The model's colour in the figures."""
    cells: list[str]
    note: str
    """Explanation of a reference, or reason why a model is not compared; empty for none."""
    span: int
    """Number of columns of the note's cell."""


@dataclass(frozen=True, kw_only=True)
class ReportTable:
    """The models of a task at one scale: scores and costs, and how they were compared."""

    title: str
    held_equal: str
    head: list[str]
    rows: list[ScoreRow]
    notes: list[str]
    costs: Grid


def report_tables(tables: StudyTables, frame: pd.DataFrame) -> list[ReportTable]:
    """Return the tables of each task and scale, with all columns.

    Args:
        tables: of the study.
        frame: its runs, for the models' colours.
    """
    colours = {arm: look["color"] for arm, look in styles(frame).items()}
    report = []
    for table in tables.tasks:
        scores, costs = score_and_cost_columns(table.body.columns)
        report.append(
            ReportTable(
                title=table.title, held_equal=table.held_equal, head=[column.head for column in scores],
                rows=_score_rows(table.body.only(scores), colours), notes=[*table.notes, *table.compared],
                costs=Grid(
                    title="Cost and size", head=[column.head for column in costs],
                    rows=[
                        [column.text(row) for column in costs]
                        for _, row in table.rows.iterrows()
                        if row["seeds"]
                    ],
                ),
            )
        )  # fmt: skip
    return report


def score_and_cost_columns(columns: list[Column]) -> tuple[list[Column], list[Column]]:
    """Return the columns of the two tables of a task, which begin with the columns of the models' names."""
    end = columns.index(VERDICT) + 1
    names = columns[: end - 2]
    statistics = [column for column in columns[end:] if column.head in STATISTICS]
    costs = [column for column in columns[end:] if column not in statistics]
    return [*columns[:end], *statistics], [*names, *costs]


def _score_rows(body: Body, colours: dict[str, str]) -> list[ScoreRow]:
    score_rows: list[ScoreRow] = []
    previous_group = None
    for row in body.rows:
        reference = row.group == REFERENCES
        css = ["reference"] * reference + ["class"] * (previous_group not in (None, row.group))
        previous_group = row.group
        message = row.source["message"]
        note = (message if isinstance(message, str) else "reference") if reference else row.note
        score_rows.append(
            ScoreRow(
                css=" ".join(css), colour=colours.get(row.source["arm"], "transparent"), cells=row.cells,
                note=note, span=len(body.columns) - len(row.cells),
            )
        )  # fmt: skip
    return score_rows


def warning_groups(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """Return the warnings of a study by the task that they are about; those about the study come first."""
    labels = [task_label(task, scale) for (task, scale), _ in scale_groups(comparison.frame)]
    groups: dict[str, list[str]] = {"": [], **{label: [] for label in labels}}
    for warning in comparison.warnings:
        label, _, text = warning.partition(": ")
        groups[label if label in labels else ""].append(text if label in labels else warning)
    return [(label or "the study", warnings) for label, warnings in groups.items() if warnings]


def run_table(frame: pd.DataFrame) -> Grid:
    """Return every run with its status and score."""
    rows = []
    for _, run in frame.iterrows():
        score = "-" if pd.isna(run["score"]) else f"{run['score']:.6f}"
        message = run["message"] if isinstance(run["message"], str) else ""
        task = task_label(run["task"], run["scale"])
        rows.append([run["arm"], task, str(run["seed"]), run["status"], score, run["digest"], message])
    return Grid(head=["model", "task", "seed", "status", "score", "digest", "message"], rows=rows)


def provenance(frame: pd.DataFrame) -> list[tuple[str, list[tuple[str, int]]]]:
    """Return each title of ``PROVENANCE`` with the recorded values and how many runs have each."""
    values = []
    for column, label in PROVENANCE.items():
        if column not in frame:
            continue  # a frame of an earlier version
        counts = frame[column].dropna().astype(str).value_counts(sort=True)
        values.append((label, [(str(value), int(n)) for value, n in counts.items()]))
    return values


def config_tables(frame: pd.DataFrame) -> list[Grid]:
    """Return the settings in which models of one task differ: a table for each task, a model a column."""
    tables = []
    for (task, scale), rows in scale_groups(config_differences(frame)):
        arms = [c for c in rows.columns if c not in (*TASK_SCALE, "setting") and c in frame["arm"].tolist()]
        arms = [arm for arm in arms if rows[arm].notna().any()]
        lines = [
            [row["setting"], *("-" if pd.isna(row[arm]) else str(row[arm]) for arm in arms)]
            for row in rows.astype(object).to_dict("records")
        ]
        tables.append(Grid(title=task_label(task, scale), head=["setting", *arms], rows=lines))
    return tables
