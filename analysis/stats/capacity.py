"""Capacity: the largest difficulty of a task that a model solves, from runs on a ladder of difficulties.

``study.ladder`` is the place of a run on a ladder, such as the number of pairs that it recalls. A rung is
solved at a mean accuracy over seeds of ``study.solved`` or more. Between two measured difficulties the
accuracy is interpolated, linearly over the logarithm of the difficulty; beyond the ends of a ladder the
capacity is a bound.

The interval of a capacity are the difficulties that are solved by the lower and by the upper ends of the
intervals of the accuracies (an inverted confidence band).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from archbench.analysis.stats.arms import finished, reference_rows, study_setting
from archbench.analysis.stats.grid import Grid
from archbench.analysis.stats.intervals import share_interval
from archbench.analysis.stats.targets.performance_profile import lines

SOLVED = 0.9
"""Default of ``study.solved`` of ladders."""
AT_LEAST, BELOW = "at least", "below"
LADDER_SCALE = ["ladder", "scale"]
NOTE = (
    "Capacity: the largest difficulty with a mean accuracy of {level:g} or more, interpolated between those "
    "that were measured; in brackets that of the ends of the 95% intervals of the accuracies over seeds. A "
    "run that diverged has an accuracy of 0."
)
RUNG_COLUMNS = [
    *LADDER_SCALE, "unit", "level", "model", "difficulty", "score", "low", "high", "seeds", "state_bytes",
    "reference",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The largest difficulty that is solved, or a bound of it."""

    difficulty: float
    bound: str = ""
    """``at least`` where the hardest rung is solved, ``below`` where none is, else empty."""

    def __str__(self) -> str:
        return f"{self.bound} {self.difficulty:.3g}".strip()


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """The capacity of a model on a ladder."""

    model: str
    limit: Limit
    low: Limit | None
    """End of the 95% interval over seeds; None if a rung has fewer than two seeds."""
    high: Limit | None
    state_bytes: float
    """Of the decoding state after 2048 tokens, the mean over the rungs; NaN for models without one."""


def rungs(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each rung of each model of a study; columns: ``RUNG_COLUMNS``.

    ``score`` is the mean accuracy over ``seeds``, ``low`` to ``high`` its 95% interval (NaN below two seeds),
    and ``reference`` the best reference line of the rung (NaN without). Empty without ``study.ladder``.
    """
    rows: list[dict[str, object]] = []
    if "ladder" not in frame or frame["ladder"].isna().all():
        return pd.DataFrame(rows, columns=RUNG_COLUMNS)
    runs = frame[frame["ladder"].notna()]
    runs = runs[finished(runs) | (runs["status"] == "diverged")]
    runs = runs.assign(model=lines(runs), score=runs["score"].where(finished(runs), 0.0))
    for (ladder, scale, model, difficulty), rung in runs.groupby(
        [*LADDER_SCALE, "model", "difficulty"], sort=True
    ):
        scores = rung["score"].tolist()
        low, high = share_interval(scores, float(rung["score_items"].mean()))
        level = study_setting(rung, "solved")
        references = [line["score"] for line in reference_rows(rung)]
        rows.append(
            {
                "ladder": ladder, "scale": scale, "unit": study_setting(rung, "difficulty_unit"),
                "level": SOLVED if level is None else float(level), "model": model, "difficulty": difficulty,
                "score": float(np.mean(scores)), "low": low, "high": high, "seeds": len(scores),
                "state_bytes": rung["state_bytes_2k"].mean(), "reference": max(references, default=math.nan),
            }
        )  # fmt: skip
    return pd.DataFrame(rows, columns=RUNG_COLUMNS)


def largest_solved(difficulties: Sequence[float], accuracies: Sequence[float], level: float) -> Limit:
    """Return the largest difficulty with an accuracy of ``level`` or more, or its bound.

    Args:
        difficulties: those that were measured, increasing.
        accuracies: one for each.
        level: the accuracy from which on a difficulty is solved.
    """
    assert all(earlier < later for earlier, later in itertools.pairwise(difficulties))
    solved = [index for index, accuracy in enumerate(accuracies) if accuracy >= level]
    if not solved:
        return Limit(difficulty=difficulties[0], bound=BELOW)
    if (last := solved[-1]) == len(difficulties) - 1:
        return Limit(difficulty=difficulties[-1], bound=AT_LEAST)
    fraction = (accuracies[last] - level) / (accuracies[last] - accuracies[last + 1])
    return Limit(difficulty=difficulties[last] * (difficulties[last + 1] / difficulties[last]) ** fraction)


def capacities(ladder: pd.DataFrame) -> list[Capacity]:
    """Return the capacity of each model of one ladder, the largest first.

    Args:
        ladder: the rows of ``rungs`` of one ladder and scale.
    """
    results = []
    for model, rows in ladder.groupby("model", sort=True):
        rows = rows.sort_values("difficulty")
        limits = {
            end: largest_solved(rows["difficulty"].tolist(), rows[end].tolist(), rows["level"].iloc[0])
            for end in ("score", "low", "high")
            if rows[end].notna().all()
        }
        results.append(
            Capacity(
                model=str(model),
                limit=limits["score"],
                low=limits.get("low"),
                high=limits.get("high"),
                state_bytes=float(rows["state_bytes"].mean()),
            )
        )
    return sorted(results, key=_order)


def _order(capacity: Capacity) -> tuple[float, str]:
    sign = {BELOW: -1, "": 0, AT_LEAST: 1}[capacity.limit.bound]
    return -math.inf * sign if sign else -capacity.limit.difficulty, capacity.model


def capacity_frame(ladders: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each model of each ladder, for a file."""
    rows: list[dict[str, object]] = []
    for (ladder, scale), group in ladders.groupby(LADDER_SCALE, sort=True):
        seeds = group.groupby("model")["seeds"].min()
        for capacity in capacities(group):
            row = {"ladder": ladder, "scale": scale, "model": capacity.model}
            row |= {"state_bytes": capacity.state_bytes, "seeds": seeds[capacity.model]}
            limits = {"capacity": capacity.limit, "low": capacity.low, "high": capacity.high}
            for name, limit in limits.items():
                row[name] = math.nan if limit is None else limit.difficulty
                row[f"{name}_bound"] = None if limit is None else limit.bound
            rows.append(row)
    return pd.DataFrame(rows)


def capacity_grids(ladders: pd.DataFrame) -> list[Grid]:
    """Return a table for each ladder: the capacity of each model, and its accuracy at each difficulty."""
    grids = []
    for (ladder, scale), group in ladders.groupby(LADDER_SCALE, sort=True):
        unit, level = group["unit"].iloc[0], group["level"].iloc[0]
        accuracy = {(row.model, row.difficulty): f"{row.score:.3f}" for row in group.itertuples()}
        difficulties = sorted(group["difficulty"].unique())
        seeds = group.groupby("model")["seeds"].min()
        grids.append(
            Grid(
                title=f"Capacity, {ladder}, {scale}: {unit} at an accuracy of {level:g}",
                head=["model", "state bytes", "seeds", "capacity", *(f"{d:g}" for d in difficulties)],
                rows=[
                    [
                        capacity.model,
                        "-" if math.isnan(capacity.state_bytes) else f"{capacity.state_bytes:,.0f}",
                        str(seeds[capacity.model]),
                        capacity_text(capacity),
                        *(accuracy.get((capacity.model, d), "-") for d in difficulties),
                    ]
                    for capacity in capacities(group)
                ],
                note=NOTE.format(level=level),
            )
        )
    return grids


def capacity_text(capacity: Capacity) -> str:
    """Return the capacity with its interval."""
    if capacity.low is None or capacity.high is None:
        return str(capacity.limit)
    return f"{capacity.limit} [{capacity.low}, {capacity.high}]"
