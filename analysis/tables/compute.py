"""Compute multipliers as sentences and as tables."""

from __future__ import annotations

import math

import pandas as pd

from analysis.stats.arms import study_setting
from analysis.stats.compute.multipliers import GROUP, compute_multipliers
from analysis.stats.grid import Grid
from analysis.tables.format import budget, interval_in_brackets, multiplier
from analysis.tables.sentences import TYPES

VERDICTS = {
    "ahead": "is ahead of {}",
    "ahead but shrinking": "is ahead of {}, but its lead shrinks with compute",
    "behind": "is behind {}",
    "crosses": "crosses {}",
    "undecided": "is undecided against {}",
}
"""Verdicts over all budgets as the beginning of a sentence."""
NOTE = (
    "multiplier: how many times the FLOPs of a model the baseline needs for the same score, interpolated "
    "between the budgets of the baseline; 'at least' where it does not reach the score. In brackets the 95% "
    "interval over seeds, corrected for the number of models. in time: the same in seconds of training, as "
    "measured. shared: the fraction of the lead that {part} has too."
)


def over_compute(frame: pd.DataFrame) -> list[str]:
    """Return the sentences of a study with several budgets: a string for each task and likelihood type.

    Each has a sentence for each model, the best at the largest budget first, then one on ``study.explains``.
    """
    multipliers, answers = compute_multipliers(frame), []
    for (task, likelihood, metric), rows in multipliers.groupby(GROUP, dropna=False, sort=True):
        kind = f", {TYPES[likelihood]}" if likelihood in TYPES else ""
        where = f"{task}{kind}, {str(metric).replace('_', ' ')} from {budget(rows['flops'].min())} to "
        last = rows.sort_values("flops").groupby("model").tail(1).sort_values("score")
        sentences = [_sentence(rows[rows["model"] == model]) for model in last["model"]]
        sentences += _shared(last, study_setting(frame, "explains"))
        answers.append(f"{where}{budget(rows['flops'].max())} training FLOPs: {' '.join(sentences)}")
    return answers


def _sentence(rows: pd.DataFrame) -> str:
    """Return the verdict on a model, its multipliers, their slope, and what a part of the models explains."""
    rows = rows.sort_values("flops")
    first, baseline = rows.iloc[0], str(rows["baseline"].iloc[0])
    needs = [f"{_multiplier(row)} times at {budget(row['flops'])}" for _, row in rows.iterrows()]
    text = f"{first['model']} {VERDICTS[first['verdict']].format(baseline)}: for its score {baseline} needs "
    text += f"{', '.join(needs[:-1])} and {needs[-1]} FLOPs"
    if math.isfinite(slope := float(first["slope"])):
        ends = interval_in_brackets(10 ** first["slope_low"], 10 ** first["slope_high"])
        text += f"; each decade of compute multiplies this by {10**slope:.2g}{ends}"
    return text + "."


def _shared(last: pd.DataFrame, part: str | None) -> list[str]:
    """Return how much of each lead at the largest budget ``study.explains`` has; empty without a lead."""
    known = last[last["shared"].notna() & (last["verdict"] != "undecided")]
    if known.empty:
        return []
    leads = [f"{_share(row)} of the lead of {row['model']}" for _, row in known.iterrows()]
    return [f"{part} has {' and '.join(leads)} at {budget(last['flops'].max())} FLOPs."]


def compute_grids(multipliers: pd.DataFrame, part: str | None) -> list[Grid]:
    """Return a table for each task and likelihood type: a row for each model and budget."""
    grids = []
    for (task, likelihood, metric), rows in multipliers.groupby(GROUP, dropna=False, sort=True):
        kind = f", {TYPES[likelihood]}" if likelihood in TYPES else ""
        baseline = str(rows["baseline"].iloc[0])
        has_part = bool(rows["shared"].notna().any())
        head = ["model", "FLOPs", "seeds", str(metric).replace("_", " "), baseline, "multiplier", "in time"]
        grids.append(
            Grid(
                title=f"Compute multipliers over {baseline}, {task}{kind}",
                head=[*head, *["shared"] * has_part, "all budgets"],
                rows=[
                    [
                        str(row["model"]), budget(row["flops"]), str(row["seeds"]), f"{row['score']:.3f}",
                        number(row["baseline_score"]), _multiplier(row), _in_time(row),
                        *[_share(row)] * has_part, str(row["verdict"]),
                    ]
                    for _, row in rows.sort_values(["model", "flops"]).iterrows()
                ],
                keys=2,
                note=NOTE.format(part=part) if has_part else NOTE.partition(" shared:")[0],
            )
        )  # fmt: skip
    return grids


def _multiplier(row: pd.Series) -> str:
    return multiplier(row["multiplier"], row["bound"], row["low"], row["high"])


def _in_time(row: pd.Series) -> str:
    return (
        "-" if math.isnan(row["time_multiplier"]) else f"{row['bound']} {row['time_multiplier']:.2g}".strip()
    )


def _share(row: pd.Series) -> str:
    if math.isnan(row["shared"]):
        return "-"
    return f"{row['shared']:.0%} [{row['shared_low']:.0%}, {row['shared_high']:.0%}]"


def number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"
