"""Scores against a number of the runs, such as how often the training text was gone through.

A study asks for it with ``study.against``, a number column of ``analysis.load.study`` such as
``training_epochs``: a line for each backbone, and what changes from its smallest number on.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from analysis.stats.arms import TASK_SCALE, arm_table, asked, finished
from analysis.stats.intervals import mean_interval
from experiments.tasks.likelihood import LIKELIHOOD_TYPES

NOTE = (
    "In brackets the change from the first row, paired by seed; ± is the 95% t-interval over seeds, not "
    "corrected for their number. Scores of different likelihood types are not comparable."
)

COLUMNS = [
    "task", "scale", "against", "backbone", "likelihood", "metric", "unit", "x", "score", "half_width",
    "seeds", "change", "change_half_width",
]  # fmt: skip


def against_scores(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each arm, in order of likelihood type, backbone and ``x``; columns: ``COLUMNS``.

    ``x`` is the arm's mean of the column that ``study.against`` names. ``change`` is the mean paired
    difference from the arm of the same backbone with the smallest ``x`` (NaN in that one's row); half-widths
    (95% t-intervals) are NaN below two seeds. Empty where a study asks for nothing.
    """
    rows: list[dict[str, object]] = []
    for (task, scale), group in frame.groupby(TASK_SCALE, sort=True):
        if (column := asked(group, "against")) is None:
            continue
        runs, arms = group[finished(group)], arm_table(group).query("kind == 'arm' and seeds > 0")
        arms = arms.assign(x=arms[column])
        for backbone, line in sorted(arms.groupby("backbone"), key=_place):
            first: pd.Series | None = None
            for _, arm in line.sort_values("x").iterrows():
                own = runs[runs["arm"] == arm["arm"]].set_index("seed")["score"]
                change = None if first is None else mean_interval((own - first).dropna().tolist())
                first = own if first is None else first
                shared = ("likelihood", "metric", "unit", "x", "score", "half_width", "seeds")
                rows.append(
                    {"task": task, "scale": scale, "against": column, "backbone": backbone}
                    | {key: arm[key] for key in shared}
                    | {"change": math.nan if change is None else change.mean}
                    | {"change_half_width": math.nan if change is None else change.half_width}
                )
    return pd.DataFrame(rows, columns=COLUMNS).astype({"change_half_width": float})


def _place(line: tuple[Any, pd.DataFrame]) -> tuple[int, str]:
    """Return the order of a line: by likelihood type, then by name."""
    classes, own = list(LIKELIHOOD_TYPES), line[1]["likelihood"].iloc[0]
    return classes.index(own) if own in classes else len(classes), str(line[0])


def label(column: str) -> str:
    """``training_epochs`` as words."""
    return column.removeprefix("training_").replace("_", " ")


def against_title(rows: pd.DataFrame) -> str:
    """The heading of one table."""
    first = rows.iloc[0]
    metric = str(first["metric"]).replace("_", " ")
    return f"{first['task']}, {first['scale']}: {metric} against {label(first['against'])}"


def against_grid(rows: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Header and rows of text of one task: a number a row, a backbone a column."""
    rows = rows.assign(number=rows["x"].map(lambda x: f"{x:.3g}"))
    columns = [
        (named(str(backbone), line), {row["number"]: _cell(row) for _, row in line.iterrows()})
        for backbone, line in rows.groupby("backbone", sort=False)
    ]
    numbers = dict.fromkeys(rows.sort_values("x")["number"])
    head = [label(rows.iloc[0]["against"]), *(name for name, _ in columns)]
    return head, [[number, *(cells.get(number, "-") for _, cells in columns)] for number in numbers]


def named(backbone: str, line: pd.DataFrame) -> str:
    """Return the backbone with its likelihood type, where it has one."""
    kind = line["likelihood"].iloc[0]
    return f"{backbone} ({kind})" if isinstance(kind, str) else backbone


def _cell(row: pd.Series) -> str:
    score = f"{row['score']:.3f}" + ("" if math.isnan(row["half_width"]) else f" ± {row['half_width']:.3f}")
    if math.isnan(row["change"]):
        return score
    half = "" if math.isnan(row["change_half_width"]) else f" ± {row['change_half_width']:.3f}"
    return f"{score} ({row['change']:+.3f}{half})"
