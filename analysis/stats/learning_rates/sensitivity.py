"""Learning-rate sensitivity of a study with multiple learning rates, and optima that are not bracketed."""

from __future__ import annotations

import math

import pandas as pd

from archbench.analysis.stats.learning_rates.choice import best_rate, rate_means
from archbench.analysis.stats.targets.performance_profile import lines

FEW = 3
"""Minimum number of learning rates of a curve."""
RUN = [
    "task", "line", "backbone", "learning_rate", "seed", "status", "metric", "direction", "validation",
]  # fmt: skip


def rate_runs(frame: pd.DataFrame, at_least: int = FEW) -> pd.DataFrame:
    """Return the runs of lines (backbone and target size) that were tried at ``at_least`` learning rates.

    Columns: ``RUN``; ``validation`` is NaN for a run that did not complete. Runs that have not ended, and
    runs with an unknown metric, are left out.
    """
    size = frame["matched_target"].map(lambda t: "" if math.isnan(t) else f" {t:,.0f}")
    has_sizes = frame.groupby(["task", "backbone"])["matched_target"].transform("nunique") > 1
    table = frame.assign(line=lines(frame) + size.where(has_sizes, ""))
    table["validation"] = table["validation"].where(table["status"] == "complete")
    for column in ("metric", "direction"):
        table[column] = table.groupby("task")[column].transform("first")
    ended = table["learning_rate"].notna() & (table["status"] != "incomplete") & table["metric"].notna()
    table = table[ended]
    tried = table.groupby(["task", "line"])["learning_rate"].transform("nunique")
    return table[tried >= at_least][RUN]


def rate_optima(rates: pd.DataFrame) -> pd.DataFrame:
    """Return for each line its best rate, the ``validation`` score there, and how much worse the mean is.

    The rate is chosen as in ``analysis.rates``: never one that diverged under a seed, or that was not run
    with all seeds.

    Columns: ``task line learning_rate validation worse rates diverged runs edge``; ``edge`` is ``lower`` or
    ``upper`` if the best rate is that end of the grid, else empty.
    """
    rows = []
    for (task, line), runs in rates.groupby(["task", "line"], sort=True):
        mean = rate_means(runs)
        optimum, edge = best_rate(mean, higher=bool((runs["direction"] == "higher").any()))
        if len(mean) < FEW or math.isnan(optimum):
            continue
        rows.append(
            {
                "task": task, "line": line, "learning_rate": optimum, "validation": mean[optimum],
                "worse": abs(mean.mean() - mean[optimum]), "rates": len(mean),
                "diverged": int((runs["status"] == "diverged").sum()), "runs": len(runs), "edge": edge,
            }
        )  # fmt: skip
    columns = ["task", "line", "learning_rate", "validation", "worse", "rates", "diverged", "runs", "edge"]
    return pd.DataFrame(rows, columns=columns)


def rate_notes(optima: pd.DataFrame) -> list[str]:
    """Return one sentence for each row of ``rate_optima``."""
    return [
        f"{row.task}: {row.line} is best at {row.learning_rate:g}, {row.validation:.4f}; the mean over its "
        f"{row.rates} rates is {row.worse:.4f} worse; diverged: {row.diverged} of {row.runs} runs"
        for row in optima.itertuples()
    ]


def rate_warnings(frame: pd.DataFrame) -> list[str]:
    """Return warnings about best rates at the edge of their grid, and about a choice on the test split."""
    optima = rate_optima(rate_runs(frame))
    warnings = [
        f"{row.task}: learning rate of {row.line} not bracketed, the best ({row.learning_rate:g}) is at the "
        f"{row.edge} edge of its grid"
        for row in optima[optima["edge"] != ""].itertuples()
    ]
    for task, task_runs in rate_runs(frame, at_least=2).groupby("task", sort=True):
        names = ", ".join(sorted(task_runs["line"].unique()))
        warnings.append(
            f"{task}: {names} stand at several learning rates: to take the best by these scores is to choose "
            "on the test split; archbench rates chooses on the validation split"
        )
    return warnings
