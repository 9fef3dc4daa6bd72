"""Solve rates: how many seeds of an arm solve a task. Training on probes often jumps, which a mean hides.

``study.solved`` is the test accuracy at which a task counts as solved.
"""

from __future__ import annotations

import pandas as pd

from archbench.analysis.load.scale_order import in_table, scale_groups, task_label
from archbench.analysis.stats.arms import study_setting
from archbench.analysis.stats.grid import Grid
from archbench.analysis.stats.intervals import mean_interval, wilson_interval

BITS = "test_bits_per_answer"
"""Column of the cross-entropy of an answer."""
BITS_NOTE = "bits per answer: cross-entropy, mean over seeds with its 95% interval."
NOTE = (
    "A run that diverged or ran out of memory has not solved its task; runs still going on are left out. The "
    "interval is Wilson's, 95%, over seeds."
)

SOLVED = 0.95
"""Default of ``study.solved``."""
SPAN, JUMP = 0.1, 0.5
"""Ranges of a model's accuracies over its seeds above which models are compared by solve counts: ``SPAN`` if
its seeds are on both sides of ``study.solved``, ``JUMP`` in any case."""

COLUMNS = [
    "task", "scale", "arm", "threshold", "solved", "runs", "rate", "low", "high", "bits", "bits_margin",
]  # fmt: skip


def solve_rates(frame: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each arm of a task with an accuracy, in the order of its table; columns: ``COLUMNS``.

    ``rate`` is the fraction ``solved`` / ``runs`` of the runs that have ended, ``low`` to ``high`` its
    interval; ``bits`` is the mean cross-entropy of an answer, plus or minus ``bits_margin``; NaN for runs
    that have not recorded it. Empty if the study does not set ``solved``.

    Args:
        frame: runs.
        table: their ``arm_table``.
    """
    rows: list[dict[str, object]] = []
    for (task, scale), group in scale_groups(frame):
        threshold = study_setting(group, "solved")
        if threshold is None or not group["metric"].dropna().str.endswith("accuracy").any():
            continue
        ended = group[~group["status"].isin(["incomplete", "preempted"])]
        arms = in_table(table, task, scale).query("kind == 'arm'")
        for model in [model for model in arms["arm"] if model in set(ended["arm"])]:
            of_model = ended[ended["arm"] == model]
            scores = of_model["score"]
            bits = mean_interval(of_model[BITS].dropna().tolist() if BITS in of_model else [])
            solved, runs = int((scores >= float(threshold)).sum()), len(scores)
            low, high = wilson_interval(solved, runs)
            rows.append(
                {
                    "task": task, "scale": scale, "arm": model, "threshold": float(threshold),
                    "solved": solved, "runs": runs, "rate": solved / runs, "low": low, "high": high,
                    "bits": bits.mean, "bits_margin": bits.half_width,
                }
            )  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)


def solve_counts(runs: pd.DataFrame) -> dict[str, tuple[int, int]] | None:
    """Return for each model how many seeds solve the task, and how many it has; None if scores do not jump.

    If only some seeds of a model solve the task, means are not normally distributed, and models are compared
    by solve counts. Otherwise, means are compared as on any task.

    Args:
        runs: finished runs of the models of one task.
    """
    if not runs["metric"].dropna().str.endswith("accuracy").all():
        return None
    declared = study_setting(runs, "solved")
    threshold = SOLVED if declared is None else float(declared)
    jumps, counts = False, {}
    for model, model_runs in runs.groupby("arm", sort=True):
        scores = model_runs["score"]
        solved, span = int((scores >= threshold).sum()), float(scores.max() - scores.min())
        both = declared is not None and 0 < solved < len(scores)
        jumps |= span > JUMP or (both and span > SPAN)
        counts[str(model)] = solved, len(scores)
    return counts if jumps else None


def solved_grid(rows: pd.DataFrame) -> Grid:
    """Return the solve rates of one task and scale as text."""
    row, has_bits = rows.iloc[0], bool(rows["bits"].notna().any())
    label = task_label(row["task"], row["scale"])
    return Grid(
        title=f"Solve rate, {label}: share of seeds at {row['threshold']:g} or more",
        head=["arm", "seeds that solve it", "rate", "95% interval", *["bits per answer"] * has_bits],
        rows=[
            [
                str(row["arm"]),
                f"{row['solved']} of {row['runs']}",
                f"{row['rate']:.2f}",
                f"{row['low']:.2f} to {row['high']:.2f}",
                *[_bits(row)] * has_bits,
            ]
            for _, row in rows.iterrows()
        ],
        note=f"{BITS_NOTE} {NOTE}" if has_bits else NOTE,
    )


def _bits(row: pd.Series) -> str:
    """Return the mean cross-entropy of an answer with its margin; a dash if it was not recorded."""
    if pd.isna(row["bits"]):
        return "-"
    return f"{row['bits']:.3f}" + ("" if pd.isna(row["bits_margin"]) else f" ± {row['bits_margin']:.3f}")
