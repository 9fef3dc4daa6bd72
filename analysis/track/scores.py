"""The table of all scores of a track with their costs: the CSV file of its page."""

from __future__ import annotations

import pandas as pd

KEPT = [
    "task", "kind", "arm", "likelihood", "metric", "status", "score", "low", "high", "seeds", "runs",
    "learned", "state_bytes_2k",
]  # fmt: skip
"""Columns of ``analysis.stats.arms.arm_table``."""


def score_table(
    arms: pd.DataFrame, held_out: pd.DataFrame, reached: pd.DataFrame, tuning: pd.DataFrame
) -> pd.DataFrame:
    """Return a row for each model of each workload, then one for each model of each held-out variant.

    Columns: ``KEPT``; ``target``, ``reached_runs``, ``tokens_to_target`` and ``flops_to_target`` (medians
    over runs); ``learning_rate``, and ``edge`` if it is at an edge of the grid; ``variant``, ``setting``.

    Args:
        arms: from ``analysis.stats.arms.arm_table``.
        held_out: from ``analysis.track.results.held_out``.
        reached: from ``analysis.stats.targets.target_profiles.to_target``.
        tuning: the chosen learning rates, from ``analysis.track.tuning.write_rates``.
    """
    costs = reached.drop(columns="runs").rename(
        columns={"reached": "reached_runs", "tokens": "tokens_to_target", "flops": "flops_to_target"}
    )
    rates = tuning[["task", "backbone", "learning_rate", "edge"]].rename(columns={"backbone": "arm"})
    # Without runs with test seeds, ``arms`` has neither rows nor columns.
    scores = arms.reindex(columns=KEPT).astype({"task": object, "arm": object})
    for columns in (costs, rates):
        scores = scores.merge(columns, on=["task", "arm"], how="left")
    return pd.concat([scores, held_out.assign(kind="held out")], ignore_index=True)
