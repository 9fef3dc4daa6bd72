"""Decision accuracy and signal-to-noise ratio of the budgets of a study as tables."""

from __future__ import annotations

import math

import pandas as pd

from archbench.analysis.stats.compute.multipliers import GROUP
from archbench.analysis.stats.grid import Grid
from archbench.analysis.tables.format import budget
from archbench.analysis.tables.sentences import with_likelihood

HEAD = [
    "FLOPs",
    "models",
    "same order",
    "decided",
    "same verdict",
    "reversed",
    "undecided",
    "signal to noise",
]
NOTE = (
    "same order: pairs of models with the order of their mean scores at {largest} FLOPs; decided: pairs with "
    "a verdict there, and their verdicts at the smaller budget; signal to noise: range of the mean scores "
    "over the standard deviation between seeds."
)


def decision_grids(table: pd.DataFrame) -> list[Grid]:
    """Return a table for each task and likelihood type: a row for each budget.

    Args:
        table: from ``analysis.stats.compute.decision_accuracy.decision_accuracy``.
    """
    grids = []
    for (task, likelihood, _), rows in table.groupby(GROUP, dropna=False, sort=True):
        grids.append(
            Grid(
                title=f"Decision accuracy of smaller budgets, {with_likelihood(task, likelihood)}",
                head=HEAD,
                rows=[_cells(row) for _, row in rows.iterrows()],
                note=NOTE.format(largest=budget(rows["largest_flops"].iloc[0])),
            )
        )
    return grids


def _cells(row: pd.Series) -> list[str]:
    ratio = "-" if math.isnan(row["signal_to_noise"]) else f"{row['signal_to_noise']:.3g}"
    if math.isnan(row["accuracy"]):
        return [budget(row["flops"]), str(row["models"]), *["-"] * 5, ratio]
    order = f"{row['accuracy']:.0%} of {row['pairs']:.0f}"
    counts = [f"{row[name]:.0f}" for name in ("decided", "same", "reversed", "undecided")]
    return [budget(row["flops"]), str(row["models"]), order, *counts, ratio]
