"""Compute to target, gains over the baseline, and ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analysis.stats.arms import TASK_SCALE, arm_table, asked, comparisons, finished, likelihood_group
from analysis.stats.steps_to_loss import first_reached, validation_curve

LEVELS = 8


def baseline_of(rows: pd.DataFrame, frame: pd.DataFrame) -> str:
    """Return ``study.baseline`` where it is one of these rows of ``arm_table``, else the first, the best."""
    wanted = asked(frame, "baseline")
    return str(wanted) if wanted in rows["arm"].tolist() else str(rows["arm"].iloc[0])


def levels_reached(frame: pd.DataFrame, history: pd.DataFrame) -> pd.DataFrame:
    """Return how many times fewer FLOPs and seconds than the baseline each arm takes to reach a level.

    Eight levels, evenly from the baseline's first validation to its last, by the mean of its seeds. Columns:
    ``task scale arm baseline metric level fewer_flops fewer_seconds``; means over the seeds in common, and no
    row where one of these misses the level. Arms are compared within a likelihood type, and none with a
    run that is missing.
    """
    curves = dict(list(history[history["kind"] == "validation"].groupby("path")))
    rows: list[dict[str, Any]] = []
    arms = arm_table(frame).query("kind == 'arm' and seeds > 0 and seeds == runs")
    for (task, scale, _), group in arms.groupby([*TASK_SCALE, "likelihood"], dropna=False, sort=True):
        baseline, first = baseline_of(group, frame), group.iloc[0]
        metric, direction = str(first["metric"]), str(first["direction"])
        here = frame[finished(frame) & (frame["task"] == task) & (frame["scale"] == scale)]
        points = {
            (run["arm"], run["seed"]): validation_curve(curves[run["path"]], metric)
            for run in here[here["arm"].isin(group["arm"])].to_dict("records")
            if run["path"] in curves
        }
        points = {key: curve for key, curve in points.items() if len(curve) > 1}
        ends = [
            (c["value"].iloc[0], c["value"].iloc[-1]) for (arm, _), c in points.items() if arm == baseline
        ]
        if not ends or len(group) < 2:
            continue
        start, end = np.mean(ends, axis=0)
        for level in np.linspace(float(start), float(end), LEVELS + 1)[1:]:
            at = {key: first_reached(curve, float(level), direction) for key, curve in points.items()}
            for arm in group["arm"]:
                seeds = [seed for name, seed in points if name == arm and (baseline, seed) in points]
                reached = [(at[baseline, seed], at[arm, seed]) for seed in seeds]
                if not reached or not all(other and own and own["flops"] > 0 for other, own in reached):
                    continue
                fewer = {
                    f"fewer_{axis}": float(np.mean([other[axis] / own[axis] for other, own in reached]))
                    for axis in ("flops", "seconds")
                }
                rows.append(
                    {"task": task, "scale": scale, "arm": arm, "baseline": baseline, "metric": metric}
                    | {"level": float(level), **fewer}
                )
    columns = ["task", "scale", "arm", "baseline", "metric", "level", "fewer_flops", "fewer_seconds"]
    return pd.DataFrame(rows, columns=columns)


def baseline_gains(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how much better than the baseline each arm of its likelihood type is on each task.

    Columns: ``task scale arm gain half_width``; intervals are not corrected for their number.
    """
    pairs, rows = comparisons(frame), []
    arms = arm_table(frame).query("kind == 'arm' and seeds > 0 and seeds == runs")
    for (task, scale, _), group in arms.groupby([*TASK_SCALE, "likelihood"], dropna=False, sort=True):
        baseline = baseline_of(group, frame)
        here = pairs[(pairs["task"] == task) & (pairs["scale"] == scale)]
        for _, pair in here.iterrows():
            names = {pair["better"], pair["worse"]}
            other = names - {baseline}
            if len(other) != 1 or not names <= set(group["arm"]) or pd.isna(pair["half_width"]):
                continue
            sign = 1 if pair["worse"] == baseline else -1
            rows.append(
                {"task": task, "scale": scale, "arm": other.pop(), "gain": sign * pair["gain"]}
                | {"half_width": pair["half_width"]}
            )
    return pd.DataFrame(rows, columns=["task", "scale", "arm", "gain", "half_width"])


def ranks(rows: pd.DataFrame, pairs: pd.DataFrame) -> dict[str, str]:
    """Return the range of ranks within its likelihood type that each arm may have.

    Arms between which nothing is separated are ties. An arm's best rank is one after all that are separated
    from it and better, its worst one before all that are separated from it and worse.
    """
    found = {}
    sure = pairs[pairs["separated"].astype(bool)] if len(pairs) else pairs
    arms = rows[(rows["kind"] == "arm") & (rows["seeds"] > 0)]
    for _, group in arms.groupby([likelihood_group(row) for _, row in arms.iterrows()]):
        names = group["arm"].tolist()
        for name in names:
            above = sure[(sure["worse"] == name) & sure["better"].isin(names)]
            below = sure[(sure["better"] == name) & sure["worse"].isin(names)]
            first, last = 1 + len(above), len(names) - len(below)
            found[str(name)] = f"{first}" if first == last else f"{first}-{last}"
    return found
