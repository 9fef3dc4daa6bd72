"""Gaps between the bounds of a study and the exact likelihood of one of its arms.

A study asks for it with ``study.baseline``, the name of an exact arm. The types are not ranked against
each other: a bound lies above the true value, so bound - exact is an upper limit of the true gap, and says
so wherever it is printed.
"""

from __future__ import annotations

import math

import pandas as pd

from analysis.stats.arms import TASK_SCALE, arm_table, asked, finished, mixed_data
from analysis.stats.intervals import mean_interval

NOTE = (
    "A bound lies above the true value, so each gap (bound - exact) is an upper limit of the true gap. Gaps "
    "and ratios are paired by seed; ± is the 95% t-interval over seeds. The estimator's error is the "
    "standard error of one model's bound that comes from its random masks, the mean over seeds."
)

COLUMNS = [
    "task", "scale", "baseline", "arm", "likelihood", "unit", "score", "half_width", "seeds",
    "estimator_error", "gap", "gap_half_width", "ratio", "ratio_half_width",
]  # fmt: skip


def gaps(frame: pd.DataFrame) -> pd.DataFrame:
    """The baseline, then each arm whose score is a bound, for each task and scale; columns: ``COLUMNS``.

    ``gap`` is the mean over common seeds of the arm's score minus the baseline's, ``ratio`` of one over the
    other; half-widths (95% t-intervals) are NaN below two seeds, and all four are NaN in the baseline's row.
    ``estimator_error`` is NaN where nothing is drawn. Empty where a study names no baseline, where that arm
    has no exact score, and where the runs saw different data.
    """
    rows: list[dict[str, object]] = []
    for (task, scale), group in frame.groupby(TASK_SCALE, sort=True):
        named, arms = asked(group, "baseline"), arm_table(group).query("kind == 'arm' and seeds > 0")
        exact = arms[(arms["arm"] == named) & (arms["likelihood"] == "exact")]
        if exact.empty or mixed_data(group):
            continue
        runs = group[finished(group)]
        base = runs[runs["arm"] == named].set_index("seed")["score"]
        for _, arm in pd.concat([exact, arms[arms["likelihood"] == "bound"]]).iterrows():
            own = runs[runs["arm"] == arm["arm"]].set_index("seed")
            error = own["test_estimator_error"].mean() if "test_estimator_error" in own else math.nan
            shared = {key: arm[key] for key in ("arm", "likelihood", "unit", "score", "half_width", "seeds")}
            row = {"task": task, "scale": scale, "baseline": named, **shared, "estimator_error": error}
            rows.append(row if arm["arm"] == named else row | _paired(own["score"], base))
    return pd.DataFrame(rows, columns=COLUMNS)


def _paired(score: pd.Series, base: pd.Series) -> dict[str, float]:
    """Difference and ratio of two arms over the seeds that both have."""
    found: dict[str, float] = {}
    for name, values in (("gap", score - base), ("ratio", score / base)):
        estimate = mean_interval(values.dropna().tolist())
        found[name] = estimate.mean
        found[f"{name}_half_width"] = math.nan if estimate.half_width is None else estimate.half_width
    return found


def gap_title(rows: pd.DataFrame) -> str:
    """The heading of one table of gaps."""
    first = rows.iloc[0]
    return f"Gap to {first['baseline']}, {first['task']}, {first['scale']}: bound - exact, an upper limit"


def gap_grid(rows: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Header and rows of text of one table of gaps."""
    head = ["model", "likelihood", f"{rows.iloc[0]['unit']} (n)", "estimator's error", "gap", "ratio"]
    return head, [
        [
            row["arm"],
            row["likelihood"],
            f"{'≤ ' * (row['likelihood'] == 'bound')}{_text(row, '')} ({row['seeds']})",
            "-" if math.isnan(row["estimator_error"]) else f"{row['estimator_error']:.4f}",
            _text(row, "gap"),
            _text(row, "ratio"),
        ]
        for _, row in rows.iterrows()
    ]


def _text(row: pd.Series, name: str) -> str:
    value, half_width = row[name or "score"], row[f"{name}_half_width".lstrip("_")]
    if math.isnan(value):
        return "-"
    return f"{value:.3f}" + ("" if math.isnan(half_width) else f" ± {half_width:.3f}")
