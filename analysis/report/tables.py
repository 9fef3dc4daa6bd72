"""Tables of the report as text; the templates write them as HTML."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from analysis.figures.style import styles
from analysis.load.arm_names import config_differences
from analysis.speed.curves import SHARE_HEAD, share_rows
from analysis.speed.panels import LARGEST_HEAD, largest_rows
from analysis.stats.arms import TASK_SCALE, arm_table, likelihood_group
from analysis.stats.comparisons import comparisons
from analysis.stats.performance_profile import NOTE, across_tasks, profile_grid
from analysis.stats.ranks import ranks
from analysis.stats.run_costs import (
    COST_HEAD,
    COST_NOTE,
    STABILITY_HEAD,
    STABILITY_NOTE,
    cost_rows,
    stability_rows,
)
from analysis.tables.format import flops, seconds, si, size
from analysis.tables.text import HEADERS, cells, more_tables, title, verdicts

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
    note_css: str
    """Class of the note's cell; empty where the row has no such cell."""
    span: int
    """Number of columns of the note's cell."""


@dataclass(frozen=True, kw_only=True)
class VerdictTable:
    """The models of a task at one scale, and what the tests between them say."""

    title: str
    head: list[str]
    rows: list[VerdictRow]
    verdicts: list[str]


def verdict_tables(frame: pd.DataFrame) -> list[VerdictTable]:
    """Return the verdict table of each task and scale."""
    arms, pairs, style = arm_table(frame), comparisons(frame), styles(frame)
    found = []
    for (task, scale), rows in arms.groupby(TASK_SCALE, sort=True):
        own = pairs[(pairs["task"] == task) & (pairs["scale"] == scale)]
        noted = bool(rows[rows["kind"] == "arm"]["message"].notna().any())
        head = [HEADERS[0], "rank", *HEADERS[1:], *["note"] * noted]
        colours = {arm: look["color"] for arm, look in style.items()}
        lines = _verdict_rows(rows, ranks(rows, own), colours, len(head), noted=noted)
        found.append(VerdictTable(title=title(rows), head=head, rows=lines, verdicts=verdicts(rows, own)))
    return found


def _verdict_rows(
    rows: pd.DataFrame, rank: dict[str, str], colours: dict[str, str], columns: int, *, noted: bool
) -> list[VerdictRow]:
    """Return the rows of one verdict table with so many columns; ``noted`` if the last one is for notes."""
    found: list[VerdictRow] = []
    before = None
    for _, row in rows.iterrows():
        group = likelihood_group(row)
        name, *text = cells(row)
        line = [name, rank.get(row["arm"], ""), *text]
        css = ["reference"] * (group == "reference") + ["class"] * (before not in (None, group))
        before = group
        if group == "reference":  # it has a score only: its description takes the empty cells
            line = line[:4]
        found.append(
            VerdictRow(
                css=" ".join(css),
                colour=colours.get(row["arm"], "transparent"),
                cells=line,
                note=row["message"] if isinstance(row["message"], str) else "",
                note_css="spread" if group == "reference" else "wide" * noted,
                span=columns - len(line),
            )
        )
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


def cost_table(frame: pd.DataFrame) -> Table:
    """Return the outcomes and costs of the runs of each model."""
    return Table(head=COST_HEAD, rows=cost_rows(frame), note=COST_NOTE)


def stability_table(frame: pd.DataFrame, history: pd.DataFrame) -> Table:
    """Return the gradient norms and loss spikes of each model."""
    return Table(head=STABILITY_HEAD, rows=stability_rows(frame, history), note=STABILITY_NOTE)
