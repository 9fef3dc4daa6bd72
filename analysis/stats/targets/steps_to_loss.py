"""Steps, tokens, FLOPs and seconds that each arm takes to the final validation score of another.

A study asks for it by ``study.steps_to``, the name of the arm that gives the
score. For each seed, an arm's step, tokens, FLOPs and seconds are those at which
its validation curve first has the reference's last score, on the straight line
between two evaluations. The ratio is the reference's whole budget over that: 2
means half as many. The reference itself stands in the table too: above 1, its
curve was as good before its end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from analysis.stats.arms import arm_table, finished
from analysis.stats.intervals import mean_interval

AXES = ("step", "tokens", "flops", "seconds")
NOT_REACHED = "not reached"


def with_steps(frame: pd.DataFrame, history: pd.DataFrame) -> pd.DataFrame:
    """The frame with where each run reaches the score, if the study asks for it; else as it is.

    Adds ``reach_target`` (NaN where the reference has no complete run of that seed), ``reach_step``,
    ``reach_tokens``, ``reach_flops``, ``reach_seconds`` (NaN where it is not reached), and the ratios
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
    found = dict.fromkeys(names, math.nan)
    same = (frame["arm"] == run["steps_to"]) & (frame["seed"] == run["seed"])
    same &= (frame["task"] == run["task"]) & (frame["scale"] == run["scale"])
    reference = frame[same & finished(frame)]
    if reference.empty or reference["path"].iloc[0] not in curves:
        return found
    end = validation_curve(curves[reference["path"].iloc[0]], run["metric"])
    if end.empty:
        return found
    last = end.iloc[-1]
    found["reach_target"] = float(last["value"])
    if run["path"] in curves and isinstance(run["direction"], str):
        points = validation_curve(curves[run["path"]], run["metric"])
        for axis, value in first_reached(points, found["reach_target"], run["direction"]).items():
            found[f"reach_{axis}"] = value
            found[f"reach_ratio_{axis}"] = float(last[axis]) / value
    return found


def validation_curve(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The points of one run's curve, in order: ``AXES`` and ``value``."""
    if metric not in rows:
        return pd.DataFrame(columns=[*AXES, "value"])
    points = rows.sort_values("step").rename(columns={metric: "value"})[[*AXES, "value"]]
    return points[points["value"].map(math.isfinite)]


def first_reached(points: pd.DataFrame, target: float, direction: str) -> dict[str, float]:
    """The place on each axis where a curve first is at the target or better; empty where it never is."""
    sign = 1 if direction == "higher" else -1
    before = None
    for _, point in points.iterrows():
        if sign * (point["value"] - target) >= 0:
            if before is None:
                return {axis: float(point[axis]) for axis in AXES}
            part = (target - before["value"]) / (point["value"] - before["value"])
            return {axis: float(before[axis] + part * (point[axis] - before[axis])) for axis in AXES}
        before = point
    return {}


def steps_grid(frame: pd.DataFrame, task: str, scale: str) -> tuple[str, list[str], list[list[str]]] | None:
    """Title, header and rows of text of one table; None where the study does not ask for it."""
    if "reach_target" not in frame:
        return None
    here = frame[(frame["task"] == task) & (frame["scale"] == scale)]
    known = here["steps_to"].dropna()
    if known.empty:
        return None
    name = known.iloc[0]
    order = arm_table(here).query("kind == 'arm'")["arm"].tolist()
    title = f"Training until the final validation score of {name}, {task}, {scale}"
    if name not in order:
        return f"{title}: there is no such arm (arms: {', '.join(order)})", ["arm"], [[arm] for arm in order]
    head = [
        "model", "target", "steps, by seed", "times fewer tokens (n)", "times fewer FLOPs (n)",
        "times less time (n)",
    ]  # fmt: skip
    rows = []
    for arm in order:
        runs = here[here["arm"] == arm].sort_values("seed")
        known = runs[runs["reach_target"].notna()]
        targets = known["reach_target"]
        reached = known["reach_step"].notna()
        steps = ", ".join(NOT_REACHED if math.isnan(s) else f"{s:,.0f}" for s in known["reach_step"])
        steps = steps if reached.any() or not len(known) else NOT_REACHED
        rows.append(
            [
                arm, f"{targets.mean():.4f}" if len(known) else "-",
                steps or f"no complete run of {name}",
                *(_ratio(known[f"reach_ratio_{axis}"].tolist()) for axis in ("tokens", "flops", "seconds")),
            ]
        )  # fmt: skip
    return title, head, rows


def _ratio(values: Sequence[float]) -> str:
    """Mean and 95% t-interval over seeds; of an arm that misses the score on some seed, how many reach it."""
    reached = [value for value in values if math.isfinite(value)]
    if len(reached) < len(values) or not values:
        return f"{NOT_REACHED} ({len(reached)} of {len(values)})" if values else "-"
    estimate = mean_interval(reached)
    width = "" if estimate.half_width is None else f" ± {estimate.half_width:.2f}"
    return f"{estimate.mean:.2f}{width} ({estimate.n})"
