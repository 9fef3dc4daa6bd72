"""IsoFLOP profiles: the best size at each budget, read off parabolas (approach 2 of Hoffmann et al. 2022).

A cross-check of ``analysis.scaling.laws``, not a second opinion: the parabola is biased even
without noise unless alpha equals beta, the more the wider its grid of sizes (arXiv 2603.22339).
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from analysis.scaling.laws import SAME_BUDGET

MIN_SIZES = 4
"""One more than a parabola has constants."""


def with_budgets(points: pd.DataFrame) -> pd.DataFrame:
    """The points with ``budget``: from the smallest FLOPs on, whatever lies within 10% of the first is one.

    The budget is named by the geometric mean of its points' FLOPs.
    """
    points = points.sort_values("flops", kind="stable", ignore_index=True)
    first, group, groups = -math.inf, -1, []
    for flops in points["flops"]:
        if flops > SAME_BUDGET * first:
            first, group = flops, group + 1
        groups.append(group)
    logs = np.log(points["flops"].astype(float))
    return points.assign(budget=np.exp(logs.groupby(np.array(groups)).transform("mean")))


def isoflop_profiles(points: pd.DataFrame) -> pd.DataFrame:
    """A row for each budget with four sizes or more.

    Columns: ``budget``, ``sizes`` (how many), ``low`` and ``high`` (the smallest and largest), ``size`` and
    ``loss`` at the minimum of the parabola in log size, its coefficients ``curve`` (highest power first), and
    ``edge``, true where the minimum is not between the sizes tried: then ``size`` and ``loss`` are NaN.
    """
    rows = []
    for budget, group in with_budgets(points).groupby("budget", sort=True):
        if group["size"].nunique() < MIN_SIZES:
            continue
        low, high = float(group["size"].min()), float(group["size"].max())
        curve = np.polyfit(np.log(group["size"] / low), group["loss"], 2)
        place = -curve[1] / (2 * curve[0])
        edge = bool(curve[0] <= 0 or not 0 < place < math.log(high / low))
        rows.append(
            {
                "budget": budget, "sizes": group["size"].nunique(), "low": low, "high": high,
                "size": math.nan if edge else low * math.exp(place),
                "loss": math.nan if edge else float(np.polyval(curve, place)),
                "curve": curve.tolist(), "edge": edge,
            }
        )  # fmt: skip
    columns = ["budget", "sizes", "low", "high", "size", "loss", "curve", "edge"]
    return pd.DataFrame(rows, columns=columns)


def isoflop_exponent(profiles: pd.DataFrame) -> float:
    """a in N* proportional to C^a, by least squares of logs; NaN below two bracketed budgets."""
    known = profiles[~profiles["edge"].astype(bool)]
    if len(known) < 2:
        return math.nan
    return float(np.polyfit(np.log(known["budget"].astype(float)), np.log(known["size"].astype(float)), 1)[0])
