"""Compute to target, gains over the baseline, and ranks."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.stats.arms import (
    TASK_SCALE,
    arm_table,
    declared_baseline,
    finished,
    likelihood_group,
    ranked,
)
from analysis.stats.comparisons import comparisons, verdict_of
from analysis.stats.targets.steps_to_loss import first_reached, validation_curve
from analysis.stats.verdicts.verdict_test import BETTER, WORSE

LEVELS = 8


def baseline_of(rows: pd.DataFrame, frame: pd.DataFrame) -> str:
    """Return ``study.baseline`` where it is one of these rows of ``arm_table``, else the best that is ranked.

    Where none is ranked, the first of the rows.
    """
    wanted = declared_baseline(frame[frame["arm"].isin(rows["arm"])])
    best = pd.concat([rows[ranked(rows)], rows])["arm"].iloc[0]
    return str(best) if wanted is None else wanted


def levels_reached(frame: pd.DataFrame, history: pd.DataFrame) -> pd.DataFrame:
    """Return how many times fewer FLOPs and seconds than the baseline each arm takes to reach a level.

    Eight levels, evenly from the baseline's first validation to its last, by the mean of its seeds. Columns:
    ``task scale arm baseline metric level fewer_flops fewer_seconds``; means over the seeds in common, and no
    row where one of these misses the level. Arms are compared within a likelihood type, and none with a
    run that is missing.
    """
    curves = dict(list(history[history["kind"] == "validation"].groupby("path")))
    rows: list[dict[str, object]] = []
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

    Columns: ``task scale arm gain low high verdict``; the interval is that of ``comparisons``.
    """
    pairs, rows = comparisons(frame), []
    arms = arm_table(frame).query("kind == 'arm' and seeds > 0 and seeds == runs")
    for (task, scale, _), group in arms.groupby([*TASK_SCALE, "likelihood"], dropna=False, sort=True):
        baseline = baseline_of(group, frame)
        here = pairs[(pairs["task"] == task) & (pairs["scale"] == scale)]
        for arm in group["arm"]:
            found = None if arm == baseline else verdict_of(here, arm, baseline)
            if found is not None and not pd.isna(found["low"]):
                rows.append(
                    {"task": task, "scale": scale, "arm": arm, "gain": found["difference"]}
                    | {key: found[key] for key in ("low", "high", "verdict")}
                )
    return pd.DataFrame(rows, columns=["task", "scale", "arm", "gain", "low", "high", "verdict"])


def ranks(rows: pd.DataFrame, pairs: pd.DataFrame) -> dict[str, str]:
    """Return the range of ranks within its likelihood type that each arm may have.

    An arm's best rank is one after all that are better, its worst one before all that are worse. What is
    better than something better is better: the verdicts of a family hold together. Arms that have not learned
    the task have no rank.
    """
    found = {}
    arms = rows[(rows["kind"] == "arm") & (rows["seeds"] > 0)]
    for _, group in arms.groupby([likelihood_group(row) for _, row in arms.iterrows()]):
        names = [str(name) for name in group.loc[ranked(group), "arm"]]
        above = _better(names, pairs)
        for name in names:
            worse = sum(name in own for own in above.values())
            first, last = 1 + len(above[name]), len(names) - worse
            found[name] = f"{first}" if first == last else f"{first}-{last}"
    return found


def _better(names: list[str], pairs: pd.DataFrame) -> dict[str, set[str]]:
    """Return for each arm those that are better than it, directly or through others."""
    through: dict[str, set[str]] = {name: set() for name in {*names, *pairs["model"], *pairs["other"]}}
    for model, other, verdict in zip(pairs["model"], pairs["other"], pairs["verdict"], strict=True):
        if verdict == BETTER:
            through[other].add(model)
        elif verdict == WORSE:
            through[model].add(other)
    for middle in through:
        for own in through.values():
            if middle in own:
                own |= through[middle]
    return {name: through[name] & set(names) for name in names}
