"""Arms over all tasks of a study whose score is a share, such as the accuracy of answers.

Shown from three tasks on. A run that diverged counts as the worst score, 0. An arm with other failures,
without scores, or without some of the tasks is left out, and said to be.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from analysis.stats.aggregates import Interval, interquartile_mean, probability_of_improvement
from analysis.stats.arms import asked, finished, mixed_data
from analysis.stats.intervals import SHARES

MIN_TASKS = 3
NOTE = (
    "Seeds are drawn anew within each task, the tasks are given (95% t-intervals with the deviation of a "
    "stratified bootstrap, 10,000 draws). A run that diverged counts as 0."
)

COLUMNS = ["scale", "line", "tasks", "runs", "diverged", "mean", "iqm", "iqm_low", "iqm_high", "baseline",
           "improvement", "improvement_low", "improvement_high"]  # fmt: skip


def task_scores(frame: pd.DataFrame) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Scores by scale, line (backbone, with its objective where it has several) and task.

    Only tasks whose score is a share, of which every run saw the same data, and lines with all of the
    scale's tasks.
    """
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for scale, whole in whole_tasks(frame).items():
        if len(whole) < MIN_TASKS:
            continue
        runs = frame[(frame["scale"] == scale) & frame["task"].isin(whole)]
        good = finished(runs)
        counted = runs[good | (runs["status"] == "diverged")].assign(
            score=runs["score"].where(good, 0.0), line=lines(runs)
        )
        failed = set(lines(runs)[~good & (runs["status"] != "diverged")])
        for line, own in counted.groupby("line", sort=True):
            if line not in failed and own["task"].nunique() == len(whole):
                by_task = {str(task): r["score"].tolist() for task, r in own.groupby("task", sort=True)}
                found.setdefault(scale, {})[str(line)] = by_task
    return found


def whole_tasks(frame: pd.DataFrame) -> dict[str, list[str]]:
    """Return for each scale the tasks whose score is a share and of which every run saw the same data."""
    shares = frame[frame["metric"].isin(SHARES)]["task"].unique()
    known = frame[frame["task"].isin(shares)]
    return {
        str(scale): [str(task) for task, own in runs.groupby("task", sort=True) if not mixed_data(own)]
        for scale, runs in known.groupby("scale", sort=True)
    }


def lines(frame: pd.DataFrame) -> pd.Series:
    """Return the name of each run's arm over tasks: the backbone, with the objective if it has several."""
    several = frame.groupby("backbone")["objective"].transform("nunique") > 1
    return frame["backbone"].where(~several, frame["backbone"] + " " + frame["objective"])


def across_tasks(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each scale and line, best interquartile mean first; the columns are ``COLUMNS``.

    ``improvement`` is the probability that a run of the line beats one of ``baseline``, which is
    ``study.baseline`` where that is a line, and else the line with the best interquartile mean.
    """
    rows = []
    for scale, by_line in task_scores(frame).items():
        means = {line: interquartile_mean(list(tasks.values())) for line, tasks in by_line.items()}
        order = sorted(means, key=lambda line: -means[line].value)
        wanted = asked(frame, "baseline")
        baseline = wanted if wanted in by_line else order[0]
        for line in order:
            rows.append(
                {"scale": scale, "line": line, "baseline": baseline}
                | _row(frame, scale, line, by_line[line], means[line], by_line[baseline])
            )
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(
    frame: pd.DataFrame,
    scale: str,
    line: str,
    tasks: Mapping[str, list[float]],
    middle: Interval,
    baseline: Mapping[str, list[float]],
) -> dict[str, object]:
    own = frame[(frame["scale"] == scale) & (lines(frame) == line) & frame["task"].isin(list(tasks))]
    if tasks is baseline:
        better = Interval(value=float("nan"), low=float("nan"), high=float("nan"))
    else:
        better = probability_of_improvement(list(tasks.values()), list(baseline.values()))
    return {
        "tasks": len(tasks), "runs": sum(len(scores) for scores in tasks.values()),
        "diverged": int((own["status"] == "diverged").sum()),
        "mean": sum(sum(s) / len(s) for s in tasks.values()) / len(tasks),
        "iqm": middle.value, "iqm_low": middle.low, "iqm_high": middle.high,
        "improvement": better.value, "improvement_low": better.low, "improvement_high": better.high,
    }  # fmt: skip


def profile_grid(rows: pd.DataFrame) -> tuple[str, list[str], list[list[str]]]:
    """Title, header and rows of text for one scale."""
    first = rows.iloc[0]
    title = f"Across {first['tasks']} tasks, {first['scale']}: shares, higher is better"
    head = ["model", "interquartile mean", "mean", f"beats {first['baseline']}", "runs", "diverged"]
    body = [
        [
            row["line"], _interval(row["iqm"], row["iqm_low"], row["iqm_high"]), f"{row['mean']:.3f}",
            "-" if pd.isna(row["improvement"])
            else _interval(row["improvement"], row["improvement_low"], row["improvement_high"]),
            str(row["runs"]), str(row["diverged"]),
        ]
        for _, row in rows.iterrows()
    ]  # fmt: skip
    return title, head, body


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:.3f}" + ("" if pd.isna(low) else f" [{low:.3f}, {high:.3f}]")
