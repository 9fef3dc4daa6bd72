"""Tables of the report as text; the templates write them as HTML."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from analysis.figures.style import styles
from analysis.load.arm_names import config_differences
from analysis.speed.curves import SHARE_HEAD, share_rows
from analysis.speed.panels import LARGEST_HEAD, largest_rows
from analysis.stats.arms import TASK_SCALE, arm_table
from analysis.stats.comparisons import comparisons
from analysis.stats.run_costs import (
    COST_HEAD,
    COST_NOTE,
    STABILITY_HEAD,
    STABILITY_NOTE,
    cost_rows,
    stability_rows,
)
from analysis.stats.targets.performance_profile import NOTE, across_tasks, profile_grid
from analysis.stats.text_slices import slice_table
from analysis.stats.versus_baseline import with_differences
from analysis.tables.body import REFERENCES, Row, table_rows
from analysis.tables.columns import table_columns
from analysis.tables.format import flops, seconds, si, size
from analysis.tables.headings import held_equal, how_compared, item_line, scored_line, title
from analysis.tables.slices import slice_grids
from analysis.tables.text import COLUMNS_NOTE, more_tables

PROVENANCE = {
    "git_commit": "commit", "git_dirty": "uncommitted changes", "fingerprint": "data",
    "device_name": "device", "device_processor": "processor", "device_threads": "threads",
    "device_precision": "precision", "versions": "versions", "kernels": "kernels", "command": "command",
}  # fmt: skip
"""Columns of the frame that say where a number comes from, with their titles."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of text."""

    title: str = ""
    head: list[str]
    rows: list[list[str]]
    note: str = ""
    """Text below the table."""


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
    found = []
    for (task, scale), rows in arms.groupby(TASK_SCALE, sort=True):
        runs = frame[(frame["task"] == task) & (frame["scale"] == scale)]
        own = pairs[(pairs["task"] == task) & (pairs["scale"] == scale)]
        columns = table_columns(rows, wide=True)
        table = VerdictTable(
            title=title(rows), held_equal=held_equal(runs), head=[column.head for column in columns],
            rows=_verdict_rows(table_rows(rows, columns), colours, len(columns)),
            notes=[*scored_line(runs), *item_line(rows), *how_compared(own), COLUMNS_NOTE],
        )  # fmt: skip
        found.append(table)
    return found


def _verdict_rows(body: list[Row], colours: dict[str, str], columns: int) -> list[VerdictRow]:
    """Return the rows of one verdict table with so many columns."""
    found: list[VerdictRow] = []
    before = None
    for row in body:
        reference = row.group == REFERENCES
        css = ["reference"] * reference + ["class"] * (before not in (None, row.group))
        before = row.group
        message = row.source["message"]
        note = (message if isinstance(message, str) else "reference") if reference else row.note
        found.append(
            VerdictRow(
                css=" ".join(css), colour=colours.get(row.source["arm"], "transparent"), cells=row.cells,
                note=note, span=columns - len(row.cells),
            )
        )  # fmt: skip
    return found


def speed_table(frame: pd.DataFrame) -> Table:
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
    return Table(head=head, rows=rows)


def roofline_table(speed: pd.DataFrame) -> Table:
    """Return the fraction of the roofline that each measurement reached."""
    return Table(head=SHARE_HEAD, rows=share_rows(speed))


def largest_batch_table(speed: pd.DataFrame) -> Table:
    """Return the largest batches that fit."""
    return Table(head=LARGEST_HEAD, rows=largest_rows(speed))


def run_table(frame: pd.DataFrame) -> Table:
    """Return every run with its status and score."""
    rows = []
    for _, run in frame.iterrows():
        score = "-" if pd.isna(run["score"]) else f"{run['score']:.6f}"
        message = run["message"] if isinstance(run["message"], str) else ""
        task = f"{run['task']}, {run['scale']}"
        rows.append([run["arm"], task, str(run["seed"]), run["status"], score, run["digest"], message])
    return Table(head=["model", "task", "seed", "status", "score", "digest", "message"], rows=rows)


def provenance(frame: pd.DataFrame) -> list[tuple[str, list[tuple[str, int]]]]:
    """Return each title of ``PROVENANCE`` with the recorded values and their numbers of runs."""
    found = []
    for column, label in PROVENANCE.items():
        counts = frame[column].dropna().astype(str).value_counts(sort=True)
        found.append((label, [(str(value), int(n)) for value, n in counts.items()]))
    return found


def config_tables(frame: pd.DataFrame) -> list[Table]:
    """Return the settings in which models of one task differ: a table for each task, a model a column."""
    found = config_differences(frame)
    tables = []
    for (task, scale), rows in found.groupby(TASK_SCALE, sort=True):
        arms = [c for c in rows.columns if c not in (*TASK_SCALE, "setting") and c in frame["arm"].tolist()]
        arms = [arm for arm in arms if rows[arm].notna().any()]
        lines = [
            [row["setting"], *("-" if pd.isna(row[arm]) else str(row[arm]) for arm in arms)]
            for row in rows.astype(object).to_dict("records")
        ]
        tables.append(Table(title=f"{task}, {scale}", head=["setting", *arms], rows=lines))
    return tables


def tables_over_tasks(frame: pd.DataFrame) -> list[Table]:
    """Return interquartile means over tasks; none below three tasks scored by fractions."""
    grids = [profile_grid(rows) for _, rows in across_tasks(frame).groupby("scale", sort=True)]
    return [Table(title=name, head=head, rows=body, note=NOTE) for name, head, body in grids]


def further_tables(frame: pd.DataFrame) -> list[Table]:
    """Return the further tables that a study asks for about its tasks."""
    return [
        Table(title=name, head=head, rows=rows, note=note)
        for (task, scale), _ in frame.groupby(TASK_SCALE, sort=True)
        for name, head, rows, note in more_tables(frame, str(task), str(scale))
    ]


def slice_tables(frame: pd.DataFrame) -> list[Table]:
    """Return the gains of each model on each slice of a text."""
    return [
        Table(title=name, head=head, rows=rows, note=note)
        for name, head, rows, note in slice_grids(slice_table(frame))
    ]


def cost_table(frame: pd.DataFrame) -> Table:
    """Return the outcomes and costs of the runs of each model."""
    return Table(head=COST_HEAD, rows=cost_rows(frame), note=COST_NOTE)


def stability_table(frame: pd.DataFrame, history: pd.DataFrame) -> Table:
    """Return the gradient norms and loss spikes of each model."""
    return Table(head=STABILITY_HEAD, rows=stability_rows(frame, history), note=STABILITY_NOTE)
