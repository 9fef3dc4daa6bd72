"""Learning-rate sensitivity of a study that tried several, and optima that are not bracketed."""

from __future__ import annotations

import math

import pandas as pd

from analysis.stats.learning_rates.choice import best_rate, rate_means
from analysis.stats.targets.performance_profile import lines

FEW = 3
"""Rates that make a curve."""
RUN = [
    "task", "line", "backbone", "learning_rate", "seed", "status", "metric", "direction", "validation",
]  # fmt: skip


def rate_runs(frame: pd.DataFrame, at_least: int = FEW) -> pd.DataFrame:
    """The runs of lines (backbone and target size) that were tried at ``at_least`` learning rates.

    Columns: ``RUN``; ``validation`` is NaN for a run that did not complete. Without runs that have not ended,
    and those of which the metric is not known.
    """
    size = frame["matched_target"].map(lambda t: "" if math.isnan(t) else f" {t:,.0f}")
    several = frame.groupby(["task", "backbone"])["matched_target"].transform("nunique") > 1
    table = frame.assign(line=lines(frame) + size.where(several, ""))
    table["validation"] = table["validation"].where(table["status"] == "complete")
    for column in ("metric", "direction"):
        table[column] = table.groupby("task")[column].transform("first")
    ended = table["learning_rate"].notna() & (table["status"] != "incomplete") & table["metric"].notna()
    table = table[ended]
    tried = table.groupby(["task", "line"])["learning_rate"].transform("nunique")
    return table[tried >= at_least][RUN]


def rate_optima(rates: pd.DataFrame) -> pd.DataFrame:
    """For each line its best rate, its ``validation`` there, and how much worse the mean over the grid is.

    The rate is chosen as ``analysis.rates`` does: never one that diverged under a seed, nor one short of a
    seed that others have.

    Columns: ``task line learning_rate validation worse rates diverged runs``, and ``edge``, ``lower`` or
    ``upper`` where nothing was tried beyond the best rate, else empty.
    """
    rows = []
    for (task, line), own in rates.groupby(["task", "line"], sort=True):
        mean = rate_means(own)
        best, edge = best_rate(mean, higher=bool((own["direction"] == "higher").any()))
        if len(mean) < FEW or math.isnan(best):
            continue
        rows.append(
            {
                "task": task, "line": line, "learning_rate": best, "validation": mean[best],
                "worse": abs(mean.mean() - mean[best]), "rates": len(mean),
                "diverged": int((own["status"] == "diverged").sum()), "runs": len(own), "edge": edge,
            }
        )  # fmt: skip
    columns = ["task", "line", "learning_rate", "validation", "worse", "rates", "diverged", "runs", "edge"]
    return pd.DataFrame(rows, columns=columns)


def rate_notes(best: pd.DataFrame) -> list[str]:
    """``rate_optima`` in words."""
    return [
        f"{row.task}: {row.line} is best at {row.learning_rate:g}, {row.validation:.4f}; the mean over its "
        f"{row.rates} rates is {row.worse:.4f} worse; diverged: {row.diverged} of {row.runs} runs"
        for row in best.itertuples()
    ]


def rate_warnings(frame: pd.DataFrame) -> list[str]:
    """Lines whose best rate is at the edge of its grid, and those of which one might choose it on test."""
    best = rate_optima(rate_runs(frame))
    found = [
        f"{row.task}: learning rate of {row.line} not bracketed, the best ({row.learning_rate:g}) is at the "
        f"{row.edge} edge of its grid"
        for row in best[best["edge"] != ""].itertuples()
    ]
    for task, own in rate_runs(frame, at_least=2).groupby("task", sort=True):
        names = ", ".join(sorted(own["line"].unique()))
        found.append(
            f"{task}: {names} stand at several learning rates: to take the best by these scores is to choose "
            "on the test split; archbench rates chooses on the validation split"
        )
    return found
