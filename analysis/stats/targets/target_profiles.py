"""Tokens and FLOPs to a target score, and performance profiles over workloads.

A model reaches the target of a workload when most of its runs do (3 of 5). Its cost is then the median over
runs, those that never reach it counted as infinite. A performance profile (Dolan and More 2002, as AlgoPerf
uses it) is, for a factor r, the fraction of the workloads on which a model reaches the target at no more than
r times the cost of the cheapest model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.stats.arms import finished
from analysis.stats.targets.steps_to_loss import first_reached

COLUMNS = ["task", "arm", "target", "reached", "runs", "tokens", "flops"]
FACTORS = (1.0, 1.25, 1.5, 2.0, 3.0, 5.0)
POINT = ("step", "tokens", "flops", "value")


def to_target(frame: pd.DataFrame, targets: Mapping[str, float]) -> pd.DataFrame:
    """Return a row for each model of each workload with a target; columns: ``COLUMNS``.

    ``reached`` of ``runs`` runs reach it; ``tokens`` and ``flops`` are medians over runs, infinite where most
    do not.

    Args:
        frame: rows with ``curve``, the validations of a run: JSON text, a list of the numbers of ``POINT``.
        targets: the target score by task.
    """
    rows: list[dict[str, object]] = []
    for (task, arm), runs in frame.groupby(["task", "arm"], sort=True):
        ended = runs[finished(runs) | (runs["status"] == "diverged")]
        if task not in targets or ended.empty:
            continue
        found = [_reached(run, targets[task]) for _, run in ended.iterrows()]
        cost = {axis: _median([each.get(axis, math.inf) for each in found]) for axis in ("tokens", "flops")}
        reached = sum(bool(each) for each in found)
        rows.append(
            {
                "task": task,
                "arm": arm,
                "target": targets[task],
                "reached": reached,
                "runs": len(found),
                **cost,
            }
        )
    return pd.DataFrame(rows, columns=COLUMNS)


def _reached(run: pd.Series, target: float) -> dict[str, float]:
    """Return where the curve of one run first is at the target; empty where it never is."""
    points = pd.DataFrame(json.loads(run["curve"] or "[]"), columns=list(POINT)).assign(seconds=math.nan)
    if run["status"] == "diverged" or not isinstance(run["direction"], str):
        return {}
    return first_reached(points, target, run["direction"])


def _median(values: Sequence[float]) -> float:
    """Return the middle value, of an even number the greater of the two: most have to be at it."""
    return sorted(values)[len(values) // 2]


def performance_profiles(reached: pd.DataFrame, cost: str = "flops") -> pd.DataFrame:
    """Return a row for each model, best first: ``arm``, ``workloads`` (on which it ran), a column a factor.

    Workloads whose target no model reaches are left out. A model that cannot take one has not reached it.

    Args:
        reached: from ``to_target``.
        cost: the column that is compared.
    """
    best = reached.groupby("task")[cost].min()
    counted = best[best.map(math.isfinite)].index
    rows = []
    for arm, own in reached[reached["task"].isin(counted)].groupby("arm", sort=True):
        ratio = own.set_index("task")[cost] / best[own["task"]].to_numpy()
        row: dict[Any, Any] = {"arm": arm, "workloads": len(own)}
        rows.append(row | {factor: float((ratio <= factor).sum()) / len(counted) for factor in FACTORS})
    table = pd.DataFrame(rows, columns=["arm", "workloads", *FACTORS])
    order = [*reversed(FACTORS)]
    return table.sort_values([*order, "arm"], ascending=[False] * len(order) + [True], ignore_index=True)
