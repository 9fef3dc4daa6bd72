"""Solve rates: how many seeds of an arm solve a task. Training on probes often jumps, which a mean hides.

A study asks for it with ``study.solved``, the accuracy on test from which on a task counts as solved.
"""

from __future__ import annotations

import pandas as pd

from analysis.stats.arms import TASK_SCALE, arm_table, asked
from analysis.stats.shares import wilson_interval

NOTE = (
    "A run that diverged or ran out of memory has not solved its task; runs still going on are left out. The "
    "interval is Wilson's, 95%, over seeds."
)

SOLVED = 0.95
"""The accuracy from which on a task counts as solved, where its study says nothing."""
SPAN, JUMP = 0.1, 0.5
"""Spans of a model's accuracies over its seeds: from ``SPAN`` on, seeds on both sides of ``study.solved`` are
solved or not; from ``JUMP`` on they are, whatever a study says."""

COLUMNS = ["task", "scale", "arm", "threshold", "solved", "runs", "rate", "low", "high"]


def solve_rates(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each arm of a task with an accuracy, in the order of its table; columns: ``COLUMNS``.

    ``rate`` is the share ``solved`` / ``runs`` of the runs that have ended, ``low`` to ``high`` its interval.
    Empty where a study asks for nothing.
    """
    rows: list[dict[str, object]] = []
    for (task, scale), group in frame.groupby(TASK_SCALE, sort=True):
        threshold = asked(group, "solved")
        if threshold is None or not group["metric"].dropna().str.endswith("accuracy").any():
            continue
        ended = group[~group["status"].isin(["incomplete", "preempted"])]
        arms = arm_table(group).query("kind == 'arm'")
        for arm in [arm for arm in arms["arm"] if arm in set(ended["arm"])]:
            scores = ended[ended["arm"] == arm]["score"]
            solved, runs = int((scores >= float(threshold)).sum()), len(scores)
            low, high = wilson_interval(solved, runs)
            rows.append(
                {
                    "task": task, "scale": scale, "arm": arm, "threshold": float(threshold), "solved": solved,
                    "runs": runs, "rate": solved / runs, "low": low, "high": high,
                }
            )  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)


def solve_counts(runs: pd.DataFrame) -> dict[str, tuple[int, int]] | None:
    """Return how many of the seeds of each model solve a task, and all its seeds, if scores jump; else None.

    Where some seeds of a model solve a task and others do not, means have no normal distribution, and models
    are compared by solve counts. Where no model does both, means are compared as in any other task.

    Args:
        runs: finished runs of the models of one task.
    """
    if not runs["metric"].dropna().str.endswith("accuracy").all():
        return None
    declared = asked(runs, "solved")
    threshold = SOLVED if declared is None else float(declared)
    jumps, counts = False, {}
    for arm, own in runs.groupby("arm", sort=True):
        scores = own["score"]
        solved, span = int((scores >= threshold).sum()), float(scores.max() - scores.min())
        both = declared is not None and 0 < solved < len(scores)
        jumps |= span > JUMP or (both and span > SPAN)
        counts[str(arm)] = solved, len(scores)
    return counts if jumps else None


def solved_title(rows: pd.DataFrame) -> str:
    """The heading of one table."""
    first = rows.iloc[0]
    return f"Solve rate, {first['task']}, {first['scale']}: share of seeds at {first['threshold']:g} or more"


def solved_grid(rows: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Header and rows of text of one table."""
    head = ["arm", "seeds that solve it", "rate", "95% interval"]
    return head, [
        [
            str(row["arm"]),
            f"{row['solved']} of {row['runs']}",
            f"{row['rate']:.2f}",
            f"{row['low']:.2f} to {row['high']:.2f}",
        ]
        for _, row in rows.iterrows()
    ]
