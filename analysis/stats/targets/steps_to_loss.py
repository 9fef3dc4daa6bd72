"""Steps, tokens, FLOPs and seconds that each arm needs to reach the final validation score of a reference.

``study.steps_to`` names the reference arm. For each seed, an arm's step, tokens, FLOPs and seconds are those
at which its validation curve first reaches the reference's final score, interpolated linearly between two
evaluations. The ratio is the reference's full budget divided by that: 2 means half as many. The reference is
also a row of the table: a ratio above 1 means that its curve reached the score before its end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from archbench.analysis.load.scale_order import task_label
from archbench.analysis.stats.arms import arm_table, finished
from archbench.analysis.stats.grid import Grid
from archbench.analysis.stats.intervals import mean_interval
from archbench.analysis.stats.trusted_speeds import disturbed_studies

AXES = ("step", "tokens", "flops", "seconds")
NOT_REACHED = "not reached"


def with_steps(frame: pd.DataFrame, history: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with the point at which each run reaches the score, if ``study.steps_to`` is set.

    Adds ``reach_target`` (NaN if the reference has no complete run of that seed), ``reach_step``,
    ``reach_tokens``, ``reach_flops``, ``reach_seconds`` (NaN if it is not reached), and the ratios
    ``reach_ratio_tokens`` and so on.

    Args:
        frame: from ``load_study``.
        history: from ``load_history``, of the same study.
    """
    if frame["steps_to"].isna().all():
        return frame
    curves = dict(list(history[history["kind"] == "validation"].groupby("path")))
    rows = [_run(run, frame, curves) for _, run in frame.iterrows()]
    return pd.concat([frame, pd.DataFrame(rows, index=frame.index)], axis=1)


def _run(run: pd.Series, frame: pd.DataFrame, curves: dict[str, pd.DataFrame]) -> dict[str, float]:
    names = ["reach_target", *(f"reach_{a}" for a in AXES), *(f"reach_ratio_{a}" for a in AXES)]
    columns = dict.fromkeys(names, math.nan)
    is_reference = (frame["arm"] == run["steps_to"]) & (frame["seed"] == run["seed"])
    is_reference &= (frame["task"] == run["task"]) & (frame["scale"] == run["scale"])
    reference = frame[is_reference & finished(frame)]
    if reference.empty or reference["path"].iloc[0] not in curves:
        return columns
    end = validation_curve(curves[reference["path"].iloc[0]], run["metric"])
    if end.empty:
        return columns
    final = end.iloc[-1]
    columns["reach_target"] = float(final["value"])
    if run["path"] in curves and isinstance(run["direction"], str):
        points = validation_curve(curves[run["path"]], run["metric"])
        for axis, value in first_reached(points, columns["reach_target"], run["direction"]).items():
            columns[f"reach_{axis}"] = value
            columns[f"reach_ratio_{axis}"] = float(final[axis]) / value
    return columns


def validation_curve(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the points of one run's curve, in order of steps; columns: ``AXES`` and ``value``."""
    if metric not in rows:
        return pd.DataFrame(columns=[*AXES, "value"])
    points = rows.sort_values("step").rename(columns={metric: "value"})[[*AXES, "value"]]
    return points[points["value"].map(math.isfinite)]


def first_reached(points: pd.DataFrame, target: float, direction: str) -> dict[str, float]:
    """Return the position on each axis at which a curve first reaches the target; empty if it never does."""
    sign = 1 if direction == "higher" else -1
    previous = None
    for _, point in points.iterrows():
        if sign * (point["value"] - target) >= 0:
            if previous is None:
                return {axis: float(point[axis]) for axis in AXES}
            fraction = (target - previous["value"]) / (point["value"] - previous["value"])
            return {axis: float(previous[axis] + fraction * (point[axis] - previous[axis])) for axis in AXES}
        previous = point
    return {}


def steps_grid(frame: pd.DataFrame, task: str, scale: str) -> Grid | None:
    """Return the steps of the arms of one task as text; None if the study does not set ``steps_to``."""
    if "reach_target" not in frame:
        return None
    runs_of_table = frame[(frame["task"] == task) & (frame["scale"] == scale)]
    axes = ["tokens", "flops", *["seconds"] * (not disturbed_studies(frame))]
    references = runs_of_table["steps_to"].dropna()
    if references.empty:
        return None
    name = references.iloc[0]
    order = arm_table(runs_of_table).query("kind == 'arm'")["arm"].tolist()
    title = f"Training until the final validation score of {name}, {task_label(task, scale)}"
    if name not in order:
        missing = f"{title}: there is no such arm (arms: {', '.join(order)})"
        return Grid(title=missing, head=["arm"], rows=[[model] for model in order])
    heads = {
        "tokens": "times fewer tokens (n)", "flops": "times fewer FLOPs (n)", "seconds": "times less time (n)"
    }  # fmt: skip
    head = ["model", "target", "steps, by seed", *(heads[axis] for axis in axes)]
    rows = []
    for model in order:
        runs = runs_of_table[runs_of_table["arm"] == model].sort_values("seed")
        ended = runs[runs["reach_target"].notna()]
        targets = ended["reach_target"]
        reached = ended["reach_step"].notna()
        steps = ", ".join(NOT_REACHED if math.isnan(s) else f"{s:,.0f}" for s in ended["reach_step"])
        steps = steps if reached.any() or not len(ended) else NOT_REACHED
        rows.append(
            [
                model, f"{targets.mean():.4f}" if len(ended) else "-",
                steps or f"no complete run of {name}",
                *(_ratio(ended[f"reach_ratio_{axis}"].tolist()) for axis in axes),
            ]
        )  # fmt: skip
    return Grid(title=title, head=head, rows=rows)


def _ratio(values: Sequence[float]) -> str:
    """Return mean and 95% t-interval over seeds; how many seeds reach the score if one does not."""
    reached = [value for value in values if math.isfinite(value)]
    if len(reached) < len(values) or not values:
        return f"{NOT_REACHED} ({len(reached)} of {len(values)})" if values else "-"
    estimate = mean_interval(reached)
    width = "" if estimate.half_width is None else f" ± {estimate.half_width:.2f}"
    return f"{estimate.mean:.2f}{width} ({estimate.n})"
