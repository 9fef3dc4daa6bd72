"""Tables of the report as text; the templates write them as HTML."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from analysis.figures.style import styles
from analysis.load.arm_names import config_differences
from analysis.stats.arms import TASK_SCALE, arm_table
from analysis.stats.comparisons import comparisons
from analysis.stats.grid import Grid
from analysis.stats.versus_baseline import with_differences
from analysis.tables.body import REFERENCES, table_rows
from analysis.tables.columns import table_columns
from analysis.tables.format import flops, seconds, si, size
from analysis.tables.headings import held_equal, how_compared, item_line, scored_line, title
from analysis.tables.text import COLUMNS_NOTE

PROVENANCE = {
    "git_commit": "commit", "git_dirty": "uncommitted changes", "fingerprint": "data",
    "device_name": "device", "device_processor": "processor", "device_threads": "threads",
    "device_precision": "precision", "versions": "versions", "kernels": "kernels", "command": "command",
}  # fmt: skip
"""Columns of the frame with the provenance of a run, with their titles."""


@dataclass(frozen=True, kw_only=True)
class VerdictRow:
    """A model's row in a verdict table."""

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
class VerdictTable:
    """The models of a task at one scale, and how they were compared."""

    title: str
    held_equal: str
    head: list[str]
    rows: list[VerdictRow]
    notes: list[str]


def verdict_tables(frame: pd.DataFrame) -> list[VerdictTable]:
    """Return the verdict table of each task and scale, with all columns."""
    arms, pairs = with_differences(frame), comparisons(frame)
    colours = {arm: look["color"] for arm, look in styles(frame).items()}
    verdict_tables = []
    for (task, scale), rows in arms.groupby(TASK_SCALE, sort=True):
        runs = frame[(frame["task"] == task) & (frame["scale"] == scale)]
        table_pairs = pairs[(pairs["task"] == task) & (pairs["scale"] == scale)]
        columns = table_columns(rows, wide=True)
        verdict_rows: list[VerdictRow] = []
        previous_group = None
        for row in table_rows(rows, columns):
            reference = row.group == REFERENCES
            css = ["reference"] * reference + ["class"] * (previous_group not in (None, row.group))
            previous_group = row.group
            message = row.source["message"]
            note = (message if isinstance(message, str) else "reference") if reference else row.note
            verdict_rows.append(
                VerdictRow(
                    css=" ".join(css), colour=colours.get(row.source["arm"], "transparent"), cells=row.cells,
                    note=note, span=len(columns) - len(row.cells),
                )
            )  # fmt: skip
        table = VerdictTable(
            title=title(rows), held_equal=held_equal(runs), head=[column.head for column in columns],
            rows=verdict_rows,
            notes=[*scored_line(runs), *item_line(rows), *how_compared(table_pairs), COLUMNS_NOTE],
        )  # fmt: skip
        verdict_tables.append(table)
    return verdict_tables


def speed_table(frame: pd.DataFrame) -> Grid:
    """Return the speed and memory of training, means over the seeds of each model."""
    rows = []
    arms = arm_table(frame)
    for _, row in arms[arms["kind"] == "arm"].iterrows():
        waiting = row["training_data_share"]
        values = [
            row["arm"], f"{row['task']}, {row['scale']}", si(row["training_tokens_per_second"]),
            seconds(row["training_seconds"]), flops(row["training_flops"] / row["training_seconds"]),
            flops(row["flops_per_token"]), "-" if pd.isna(waiting) else f"{waiting:.1%}",
            size(row["training_peak_memory_bytes"]),
            "none" if row["state_bytes_2k"] == 0 else size(row["state_bytes_2k"]),
        ]  # fmt: skip
        rows.append(values)
    head = [
        "model", "task", "tokens/s", "seconds", "FLOP/s", "FLOPs per token", "waiting for data",
        "peak memory", "decoding state at 2048 tokens",
    ]  # fmt: skip
    return Grid(head=head, rows=rows)


def run_table(frame: pd.DataFrame) -> Grid:
    """Return every run with its status and score."""
    rows = []
    for _, run in frame.iterrows():
        score = "-" if pd.isna(run["score"]) else f"{run['score']:.6f}"
        message = run["message"] if isinstance(run["message"], str) else ""
        task = f"{run['task']}, {run['scale']}"
        rows.append([run["arm"], task, str(run["seed"]), run["status"], score, run["digest"], message])
    return Grid(head=["model", "task", "seed", "status", "score", "digest", "message"], rows=rows)


def provenance(frame: pd.DataFrame) -> list[tuple[str, list[tuple[str, int]]]]:
    """Return each title of ``PROVENANCE`` with the recorded values and how many runs have each."""
    values = []
    for column, label in PROVENANCE.items():
        counts = frame[column].dropna().astype(str).value_counts(sort=True)
        values.append((label, [(str(value), int(n)) for value, n in counts.items()]))
    return values


def config_tables(frame: pd.DataFrame) -> list[Grid]:
    """Return the settings in which models of one task differ: a table for each task, a model a column."""
    tables = []
    for (task, scale), rows in config_differences(frame).groupby(TASK_SCALE, sort=True):
        arms = [c for c in rows.columns if c not in (*TASK_SCALE, "setting") and c in frame["arm"].tolist()]
        arms = [arm for arm in arms if rows[arm].notna().any()]
        lines = [
            [row["setting"], *("-" if pd.isna(row[arm]) else str(row[arm]) for arm in arms)]
            for row in rows.astype(object).to_dict("records")
        ]
        tables.append(Grid(title=f"{task}, {scale}", head=["setting", *arms], rows=lines))
    return tables
