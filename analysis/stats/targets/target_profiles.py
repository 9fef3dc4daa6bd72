"""Tokens and FLOPs to a target score, and performance profiles over workloads.

A model reaches the target of a workload if most of its runs do (3 of 5). Its cost is then the median over
runs; a run that never reaches the target has infinite cost. A performance profile (Dolan and More 2002, as
in AlgoPerf) is, for a factor r, the fraction of the workloads on which a model reaches the target at no more
than r times the cost of the cheapest model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from archbench.analysis.stats.arms import finished
from archbench.analysis.stats.targets.steps_to_loss import first_reached

COLUMNS = ["task", "arm", "target", "reached", "runs", "tokens", "flops"]
FACTORS = (1.0, 1.25, 1.5, 2.0, 3.0, 5.0)
POINT = ("step", "tokens", "flops", "value")


def to_target(frame: pd.DataFrame, targets: Mapping[str, float]) -> pd.DataFrame:
    """Return a row for each model of each workload with a target; columns: ``COLUMNS``.

    ``reached`` of ``runs`` runs reach it; ``tokens`` and ``flops`` are medians over runs, infinite if most
    runs do not reach it.

    Args:
        frame: rows with ``curve``, the validations of a run: JSON text, a list of the values of ``POINT``.
        targets: the target score by task.
    """
    rows: list[dict[str, object]] = []
    for (task, model), runs in frame.groupby(["task", "arm"], sort=True):
        ended = runs[finished(runs) | (runs["status"] == "diverged")]
        if task not in targets or ended.empty:
            continue
        points = []
        for _, run in ended.iterrows():
            curve = pd.DataFrame(json.loads(run["curve"] or "[]"), columns=list(POINT)).assign(
                seconds=math.nan
            )
            diverged = run["status"] == "diverged" or not isinstance(run["direction"], str)
            points.append({} if diverged else first_reached(curve, targets[task], run["direction"]))
        # The upper median: at most half of an even number of values may be greater.
        cost = {
            axis: sorted(point.get(axis, math.inf) for point in points)[len(points) // 2]
            for axis in ("tokens", "flops")
        }
        reached = sum(bool(point) for point in points)
        rows.append(
            {
                "task": task,
                "arm": model,
                "target": targets[task],
                "reached": reached,
                "runs": len(points),
                **cost,
            }
        )
    return pd.DataFrame(rows, columns=COLUMNS)


def performance_profiles(reached: pd.DataFrame, cost: str = "flops") -> pd.DataFrame:
    """Return a row for each model, best first: ``arm``, ``workloads`` (number run), a column for each factor.

    Workloads with a target that no model reaches are left out. A workload that a model did not run counts as
    not reached.

    Args:
        reached: from ``to_target``.
        cost: the column that is compared.
    """
    lowest_cost = reached.groupby("task")[cost].min()
    counted = lowest_cost[lowest_cost.map(math.isfinite)].index
    rows = []
    for model, model_rows in reached[reached["task"].isin(counted)].groupby("arm", sort=True):
        ratio = model_rows.set_index("task")[cost] / lowest_cost[model_rows["task"]].to_numpy()
        row: dict[Any, Any] = {"arm": model, "workloads": len(model_rows)}
        rows.append(row | {factor: float((ratio <= factor).sum()) / len(counted) for factor in FACTORS})
    table = pd.DataFrame(rows, columns=["arm", "workloads", *FACTORS])
    order = [*reversed(FACTORS)]
    return table.sort_values([*order, "arm"], ascending=[False] * len(order) + [True], ignore_index=True)
