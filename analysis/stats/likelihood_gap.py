"""Gaps between the bounds of a study and the exact likelihood of one of its arms.

``study.baseline`` names the exact arm. The types are not ranked against each other: a bound is above the
true value, so bound - exact is an upper limit of the true gap, and every output states this.
"""

from __future__ import annotations

import math

import pandas as pd

from archbench.analysis.load.scale_order import in_table, scale_groups, task_label
from archbench.analysis.stats.arms import finished, mixed_data, study_setting
from archbench.analysis.stats.grid import Grid
from archbench.analysis.stats.intervals import mean_interval

NOTE = (
    "A bound lies above the true value, so each gap (bound - exact) is an upper limit of the true gap. Gaps "
    "and ratios are paired by seed; ± is the 95% t-interval over seeds. The estimator's error is the "
    "standard error of one model's bound that comes from its random masks, the mean over seeds."
)

COLUMNS = [
    "task", "scale", "baseline", "arm", "likelihood", "unit", "score", "half_width", "seeds",
    "estimator_error", "gap", "gap_half_width", "ratio", "ratio_half_width",
]  # fmt: skip


def gaps(frame: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Return the baseline, then each arm that is scored by a bound, per task and scale; columns: ``COLUMNS``.

    ``gap`` is the mean over common seeds of the arm's score minus the baseline's, ``ratio`` the mean of their
    quotient; half-widths (95% t-intervals) are NaN below two seeds, and all four are NaN in the baseline's
    row. ``estimator_error`` is NaN if the bound is not sampled. Empty if a study names no baseline, if that
    arm has no exact score, if no arm is scored by a bound, or if the runs saw different data.

    Args:
        frame: runs.
        table: their ``arm_table``.
    """
    rows: list[dict[str, object]] = []
    for (task, scale), group in scale_groups(frame):
        baseline = study_setting(group, "baseline")
        arms = in_table(table, task, scale).query("kind == 'arm' and seeds > 0")
        exact = arms[(arms["arm"] == baseline) & (arms["likelihood"] == "exact")]
        bounds = arms[arms["likelihood"] == "bound"]
        if exact.empty or bounds.empty or mixed_data(group):
            continue
        runs = group[finished(group)]
        baseline_scores = runs[runs["arm"] == baseline].set_index("seed")["score"]
        for _, row in pd.concat([exact, bounds]).iterrows():
            by_seed = runs[runs["arm"] == row["arm"]].set_index("seed")
            error = by_seed["test_estimator_error"].mean() if "test_estimator_error" in by_seed else math.nan
            shared = {key: row[key] for key in ("arm", "likelihood", "unit", "score", "half_width", "seeds")}
            gap_row = {"task": task, "scale": scale, "baseline": baseline, **shared, "estimator_error": error}
            if row["arm"] != baseline:  # over the seeds that both have
                score = by_seed["score"]
                for name, values in (("gap", score - baseline_scores), ("ratio", score / baseline_scores)):
                    estimate = mean_interval(values.dropna().tolist())
                    width = math.nan if estimate.half_width is None else estimate.half_width
                    gap_row |= {name: estimate.mean, f"{name}_half_width": width}
            rows.append(gap_row)
    return pd.DataFrame(rows, columns=COLUMNS)


def gap_grid(rows: pd.DataFrame) -> Grid:
    """Return the gaps of one task and scale as text."""
    row = rows.iloc[0]
    label = task_label(row["task"], row["scale"])
    return Grid(
        title=f"Gap to {row['baseline']}, {label}: bound - exact, an upper limit",
        head=["model", "likelihood", f"{row['unit']} (n)", "estimator's error", "gap", "ratio"],
        rows=[
            [
                row["arm"],
                row["likelihood"],
                f"{'≤ ' * (row['likelihood'] == 'bound')}{_text(row, '')} ({row['seeds']})",
                "-" if math.isnan(row["estimator_error"]) else f"{row['estimator_error']:.4f}",
                _text(row, "gap"),
                _text(row, "ratio"),
            ]
            for _, row in rows.iterrows()
        ],
        note=NOTE,
    )


def _text(row: pd.Series, name: str) -> str:
    value, half_width = row[name or "score"], row[f"{name}_half_width".lstrip("_")]
    if math.isnan(value):
        return "-"
    return f"{value:.3f}" + ("" if math.isnan(half_width) else f" ± {half_width:.3f}")
