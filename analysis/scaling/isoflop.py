"""IsoFLOP profiles: the best size at each budget, from parabolas (approach 2 of Hoffmann et al. 2022).

This is only a cross-check of ``analysis.scaling.laws``: the parabola is biased even without noise unless
alpha equals beta, and the bias grows with the range of sizes (arXiv 2603.22339).
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from archbench.analysis.scaling.laws import SAME_BUDGET
from archbench.analysis.stats.compute.multiplier import Curve

MIN_SIZES = 4
"""Smallest number of points for a parabola: its number of coefficients, plus 1."""


def with_budgets(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points with ``budget``, the geometric mean of the FLOPs of all points of that budget.

    Points are grouped in order of FLOPs: a budget contains the points within 10% of its smallest one.
    """
    points = points.sort_values("flops", kind="stable", ignore_index=True)
    smallest, group, groups = -math.inf, -1, []
    for flops in points["flops"]:
        if flops > SAME_BUDGET * smallest:
            smallest, group = flops, group + 1
        groups.append(group)
    logs = np.log(points["flops"].astype(float))
    return points.assign(budget=np.exp(logs.groupby(np.array(groups)).transform("mean")))


def best_sizes(points: pd.DataFrame) -> Curve:
    """Return the losses of the size with the lowest mean loss at each budget, over seeds."""
    budgets, losses = [], []
    for budget, group in with_budgets(points).groupby("budget", sort=True):
        best = group.groupby("size")["loss"].mean().idxmin()
        budgets.append(float(budget))  # type: ignore[arg-type]
        losses.append(group.loc[group["size"] == best, "loss"].tolist())
    return Curve(flops=budgets, scores=losses)


def isoflop_profiles(points: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each budget with ``MIN_SIZES`` sizes or more.

    Columns: ``budget``, ``sizes`` (number), ``low`` and ``high`` (the smallest and largest), ``size`` and
    ``loss`` at the minimum of the parabola in log size, its coefficients ``curve`` (highest power first), and
    ``edge``, True if the minimum is outside the sizes tried: then ``size`` and ``loss`` are NaN.
    """
    rows = []
    for budget, group in with_budgets(points).groupby("budget", sort=True):
        if group["size"].nunique() < MIN_SIZES:
            continue
        low, high = float(group["size"].min()), float(group["size"].max())
        curve = np.polyfit(np.log(group["size"] / low), group["loss"], 2)
        log_ratio = -curve[1] / (2 * curve[0])
        edge = bool(curve[0] <= 0 or not 0 < log_ratio < math.log(high / low))
        rows.append(
            {
                "budget": budget, "sizes": group["size"].nunique(), "low": low, "high": high,
                "size": math.nan if edge else low * math.exp(log_ratio),
                "loss": math.nan if edge else float(np.polyval(curve, log_ratio)),
                "curve": curve.tolist(), "edge": edge,
            }
        )  # fmt: skip
    columns = ["budget", "sizes", "low", "high", "size", "loss", "curve", "edge"]
    return pd.DataFrame(rows, columns=columns)


def isoflop_exponent(profiles: pd.DataFrame) -> float:
    """Return a in N* proportional to C^a, by least squares of logs; NaN below two bracketed budgets."""
    bracketed = profiles[~profiles["edge"].astype(bool)]
    if len(bracketed) < 2:
        return math.nan
    log_budget, log_size = (np.log(bracketed[column].astype(float)) for column in ("budget", "size"))
    return float(np.polyfit(log_budget, log_size, 1)[0])
