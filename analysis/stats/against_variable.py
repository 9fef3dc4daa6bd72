"""Scores as a function of a numeric column of the runs, such as the number of training epochs.

``study.against`` names the column (of ``analysis.load.study``). Each backbone is one line; changes are
relative to the point with the smallest value.
"""

from __future__ import annotations

import math

import pandas as pd

from archbench.analysis.load.scale_order import in_table, scale_groups, task_label
from archbench.analysis.stats.arms import finished, study_setting
from archbench.analysis.stats.grid import Grid
from archbench.analysis.stats.intervals import mean_interval
from archbench.experiments.tasks.metrics import LIKELIHOOD_TYPES

NOTE = (
    "In brackets the change from the first row, paired by seed; ± is the 95% t-interval over seeds, not "
    "corrected for their number. Scores of different likelihood types are not comparable."
)

COLUMNS = [
    "task", "scale", "against", "backbone", "likelihood", "metric", "unit", "x", "score", "half_width",
    "seeds", "change", "change_half_width",
]  # fmt: skip


def against_scores(frame: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each arm, in order of likelihood type, backbone and ``x``; columns: ``COLUMNS``.

    ``x`` is the arm's mean of the column that ``study.against`` names. ``change`` is the mean paired
    difference from the arm of the same backbone with the smallest ``x`` (NaN in that arm's row); half-widths
    (95% t-intervals) are NaN below two seeds. Empty if no study sets ``against``.

    Args:
        frame: runs.
        table: their ``arm_table``.
    """
    rows: list[dict[str, object]] = []
    for (task, scale), group in scale_groups(frame):
        if (column := study_setting(group, "against")) is None:
            continue
        runs = group[finished(group)]
        arms = in_table(table, task, scale).query("kind == 'arm' and seeds > 0")
        arms = arms.assign(x=arms[column])
        order = {likelihood: index for index, likelihood in enumerate(LIKELIHOOD_TYPES)}
        lines = sorted(
            arms.groupby("backbone"),
            key=lambda line: (order.get(line[1]["likelihood"].iloc[0], len(order)), str(line[0])),
        )
        for backbone, line in lines:
            first_scores: pd.Series | None = None
            for _, row in line.sort_values("x").iterrows():
                seed_scores = runs[runs["arm"] == row["arm"]].set_index("seed")["score"]
                change = (
                    None
                    if first_scores is None
                    else mean_interval((seed_scores - first_scores).dropna().tolist())
                )
                first_scores = seed_scores if first_scores is None else first_scores
                shared = ("likelihood", "metric", "unit", "x", "score", "half_width", "seeds")
                rows.append(
                    {"task": task, "scale": scale, "against": column, "backbone": backbone}
                    | {key: row[key] for key in shared}
                    | {"change": math.nan if change is None else change.mean}
                    | {"change_half_width": math.nan if change is None else change.half_width}
                )
    return pd.DataFrame(rows, columns=COLUMNS).astype({"change_half_width": float})


def label(column: str) -> str:
    """Return a column name as a label: ``training_epochs`` becomes ``epochs``."""
    return column.removeprefix("training_").replace("_", " ")


def against_title(rows: pd.DataFrame) -> str:
    """Return the heading of one table."""
    row = rows.iloc[0]
    metric = str(row["metric"]).replace("_", " ")
    return f"{task_label(row['task'], row['scale'])}: {metric} against {label(row['against'])}"


def against_grid(rows: pd.DataFrame) -> Grid:
    """Return the scores of one task as text: a row for each x, a column for each backbone."""
    rows = rows.assign(x_text=rows["x"].map(lambda x: f"{x:.3g}"))
    columns = [
        (line_name(str(backbone), line), {row["x_text"]: _cell(row) for _, row in line.iterrows()})
        for backbone, line in rows.groupby("backbone", sort=False)
    ]
    x_texts = dict.fromkeys(rows.sort_values("x")["x_text"])
    return Grid(
        title=against_title(rows),
        head=[label(rows.iloc[0]["against"]), *(name for name, _ in columns)],
        rows=[[x_text, *(cells.get(x_text, "-") for _, cells in columns)] for x_text in x_texts],
        note=NOTE,
    )


def line_name(backbone: str, line: pd.DataFrame) -> str:
    """Return the backbone followed by its likelihood type, if it has one."""
    likelihood = line["likelihood"].iloc[0]
    return f"{backbone} ({likelihood})" if isinstance(likelihood, str) else backbone


def _cell(row: pd.Series) -> str:
    score = f"{row['score']:.3f}" + ("" if math.isnan(row["half_width"]) else f" ± {row['half_width']:.3f}")
    if math.isnan(row["change"]):
        return score
    half = "" if math.isnan(row["change_half_width"]) else f" ± {row['change_half_width']:.3f}"
    return f"{score} ({row['change']:+.3f}{half})"
