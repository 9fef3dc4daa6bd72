"""The best point of a grid of multiple settings, by the validation split."""

from __future__ import annotations

import math

import pandas as pd

from archbench.analysis.stats.intervals import mean_interval

GROUP = ["task", "scale", "backbone", "objective"]
"""Columns that identify a grid."""


def grid_table(frame: pd.DataFrame, history: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each point of each group's grid, the best first.

    Columns: those of ``GROUP``, ``arm``, ``metric``, ``direction``, ``seeds`` (complete ones), ``missing``
    (seeds that other points have), ``validation`` and ``validation_half`` (mean over seeds and half of its
    95% t-interval), ``test``, ``test_half``, ``chosen``.
    """
    final = history[history["kind"] == "validation"].groupby("path").last()
    rows = []
    for grid_key, group in frame.groupby(GROUP, sort=True):
        seeds = group["seed"].nunique()
        points = []
        for model, runs in group.groupby("arm", sort=True):
            done = runs[runs["status"] == "complete"]
            validated = [path for path in done["path"] if path in final.index]
            metric = done["metric"].iloc[0] if len(done) else ""
            values = final.loc[validated, metric].dropna().tolist() if metric in final.columns else []
            validation, test = mean_interval(values), mean_interval(done["score"].tolist())
            points.append(
                {
                    **dict(zip(GROUP, grid_key, strict=True)),
                    "arm": model,
                    "metric": metric,
                    "direction": done["direction"].iloc[0] if len(done) else "",
                    "seeds": len(values),
                    "missing": seeds - len(values),
                    "validation": validation.mean,
                    "validation_half": validation.half_width,
                    "test": test.mean,
                    "test_half": test.half_width,
                }
            )
        sign = -1 if any(point["direction"] == "higher" for point in points) else 1
        # Points with all seeds come first; a mean of NaN comes last.
        points.sort(
            key=lambda p: (
                bool(p["missing"]),
                math.inf if math.isnan(p["validation"]) else sign * p["validation"],
            )
        )
        rows += [{**p, "chosen": index == 0 and not p["missing"]} for index, p in enumerate(points)]
    return pd.DataFrame(rows)
