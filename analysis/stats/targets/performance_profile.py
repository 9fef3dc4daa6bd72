"""Aggregates of each arm over the tasks of a study that are scored by a fraction, such as an accuracy.

They need at least three tasks. A run that diverged counts as the worst score, 0. An arm with a different
failure, without a score, or without one of the tasks is left out, and the output states this.
"""

from __future__ import annotations

import math

import pandas as pd

from archbench.analysis.load.scale_order import scale_groups
from archbench.analysis.stats.aggregates import Interval, interquartile_mean, probability_of_improvement
from archbench.analysis.stats.arms import finished, mixed_data, study_setting
from archbench.analysis.stats.grid import Grid
from archbench.analysis.stats.intervals import SHARES

MIN_TASKS = 3
NOTE = (
    "Seeds are drawn anew within each task, the tasks are given (95% t-intervals with the deviation of a "
    "stratified bootstrap, 10,000 draws). A run that diverged counts as 0."
)

COLUMNS = ["scale", "line", "tasks", "runs", "diverged", "mean", "iqm", "iqm_low", "iqm_high", "baseline",
           "improvement", "improvement_low", "improvement_high"]  # fmt: skip


def task_scores(frame: pd.DataFrame) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Return the scores by scale, line (backbone, with its objective if it has more than one) and task.

    Only tasks scored by a fraction, with the same data in every run, and lines with all of the scale's tasks.
    """
    scores: dict[str, dict[str, dict[str, list[float]]]] = {}
    for scale, tasks in whole_tasks(frame).items():
        if len(tasks) < MIN_TASKS:
            continue
        runs = frame[(frame["scale"] == scale) & frame["task"].isin(tasks)]
        is_finished = finished(runs)
        counted = runs[is_finished | (runs["status"] == "diverged")].assign(
            score=runs["score"].where(is_finished, 0.0), line=lines(runs)
        )
        failed = set(lines(runs)[~is_finished & (runs["status"] != "diverged")])
        for line, line_runs in counted.groupby("line", sort=True):
            if line not in failed and line_runs["task"].nunique() == len(tasks):
                by_task = {str(task): r["score"].tolist() for task, r in line_runs.groupby("task", sort=True)}
                scores.setdefault(scale, {})[str(line)] = by_task
    return scores


def whole_tasks(frame: pd.DataFrame) -> dict[str, list[str]]:
    """Return for each scale the tasks that are scored by a fraction and with the same data in every run."""
    shares = frame[frame["metric"].isin(SHARES)]["task"].unique()
    of_shares = frame[frame["task"].isin(shares)]
    return {
        str(scale): [
            str(task) for task, task_runs in runs.groupby("task", sort=True) if not mixed_data(task_runs)
        ]
        for (scale,), runs in scale_groups(of_shares, ["scale"])
    }


def lines(frame: pd.DataFrame) -> pd.Series:
    """Return the line of each run: its backbone, with the objective if the backbone has more than one."""
    has_objectives = frame.groupby("backbone")["objective"].transform("nunique") > 1
    return frame["backbone"].where(~has_objectives, frame["backbone"] + " " + frame["objective"])


def across_tasks(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each scale and line, best interquartile mean first; the columns are ``COLUMNS``.

    ``improvement`` is the probability that a run of the line beats a run of ``baseline``, which is
    ``study.baseline`` if that is a line, else the line with the best interquartile mean.
    """
    rows = []
    for scale, by_line in task_scores(frame).items():
        means = {line: interquartile_mean(list(tasks.values())) for line, tasks in by_line.items()}
        order = sorted(means, key=lambda line: -means[line].value)
        declared = study_setting(frame, "baseline")
        baseline = declared if declared in by_line else order[0]
        for line in order:
            tasks, iqm = by_line[line], means[line]
            runs = frame[(frame["scale"] == scale) & (lines(frame) == line) & frame["task"].isin([*tasks])]
            improvement = Interval(value=math.nan, low=math.nan, high=math.nan)
            if line != baseline:
                improvement = probability_of_improvement([*tasks.values()], [*by_line[baseline].values()])
            rows.append(
                {
                    "scale": scale, "line": line, "baseline": baseline,
                    "tasks": len(tasks), "runs": sum(len(scores) for scores in tasks.values()),
                    "diverged": int((runs["status"] == "diverged").sum()),
                    "mean": sum(sum(s) / len(s) for s in tasks.values()) / len(tasks),
                    "iqm": iqm.value, "iqm_low": iqm.low, "iqm_high": iqm.high,
                    "improvement": improvement.value, "improvement_low": improvement.low,
                    "improvement_high": improvement.high,
                }
            )  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)


def profile_grid(rows: pd.DataFrame) -> Grid:
    """Return the aggregates of one scale as text."""
    shared = rows.iloc[0]
    title = f"Across {shared['tasks']} tasks, {shared['scale']}: shares, higher is better"
    head = ["model", "interquartile mean", "mean", f"beats {shared['baseline']}", "runs", "diverged"]
    body = [
        [
            row["line"], _interval(row["iqm"], row["iqm_low"], row["iqm_high"]), f"{row['mean']:.3f}",
            "-" if pd.isna(row["improvement"])
            else _interval(row["improvement"], row["improvement_low"], row["improvement_high"]),
            str(row["runs"]), str(row["diverged"]),
        ]
        for _, row in rows.iterrows()
    ]  # fmt: skip
    return Grid(title=title, head=head, rows=body, note=NOTE)


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:.3f}" + ("" if pd.isna(low) else f" [{low:.3f}, {high:.3f}]")
