"""A card for each model of the report: what it is, what it costs, and how its loss fell."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pandas as pd

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.curves import thinned
from archbench.analysis.figures.style import styles
from archbench.analysis.load.arm_names import split_name
from archbench.analysis.load.descriptions import description
from archbench.analysis.load.scale_order import TASK_SCALE, scale_groups, task_label
from archbench.analysis.stats.trusted_speeds import with_trusted_speeds
from archbench.analysis.tables.format import flops, seconds, si, size

FACTS = {
    "parameters_total": ("parameters", si), "parameters_active": ("active", si),
    "flops_per_token": ("FLOPs per token", si), "training_flops": ("training FLOPs", flops),
    "training_seconds": ("seconds of training", seconds),
    "training_peak_memory_bytes": ("peak memory", size), "state_bytes_2k": ("decoding state", size),
    "d_model": ("d_model", si), "num_layers": ("layers", si),
    "learning_rate": ("learning rate", "{:g}".format),
}  # fmt: skip
"""Column of the frame, label and format of each fact; a fact that varies is a range."""
WIDTH, HEIGHT = 100, 40
"""Size of the view box of a curve."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The training loss of a model on one task: mean over seeds, over log tokens."""

    label: str
    points: str
    """Of an SVG polyline in a box of ``WIDTH`` by ``HEIGHT``."""
    ends: str
    """First and last loss."""


@dataclass(frozen=True, kw_only=True)
class GeneratedText:
    """A text that a model generated after training."""

    label: str
    """Task and scale."""
    prompt: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Card:
    """The description, costs and learning curves of a model."""

    name: str
    colour: str
    description: str
    settings: str
    facts: list[tuple[str, str]]
    curves: list[Curve]
    sample: GeneratedText | None
    """Of the last task and scale with one, and of its first seed; None if the model generated no text."""


def cards(comparison: Comparison) -> list[Card]:
    """Return a card for each model of a study, in alphabetical order."""
    frame = comparison.frame
    look, losses = styles(frame), mean_losses(frame, comparison.history)
    frame = with_trusted_speeds(frame)
    return [
        Card(
            name=str(arm), colour=look[str(arm)]["color"],
            description=description("backbone", str(runs["backbone"].iloc[0])),
            settings=", ".join(f"{key} {value}" for key, value in split_name(str(arm))[1].items()),
            facts=_facts(runs),
            curves=[_curve(label, losses[label, arm]) for label in labels if (label, arm) in losses],
            sample=_sample(runs),
        )
        for arm, runs in frame.groupby("arm", sort=True)
        for labels in [[task_label(task, scale) for (task, scale), _ in scale_groups(runs)]]
    ]  # fmt: skip


def mean_losses(frame: pd.DataFrame, history: pd.DataFrame) -> dict[tuple[str, str], pd.Series]:
    """Return the mean training loss by tokens, over the seeds that logged it, of each task and model."""
    if "loss" not in history:
        return {}
    logged = history["kind"].eq("train") & history["tokens"].gt(0)
    rows = history[logged & np.isfinite(history["loss"])]
    rows = rows.merge(frame[["path", "arm", *TASK_SCALE]], on="path")
    means = rows.groupby([*TASK_SCALE, "arm", "tokens"])["loss"].mean()
    curves = {
        (task_label(task, scale), str(arm)): curve.droplevel([0, 1, 2])
        for (task, scale, arm), curve in means.groupby(level=[0, 1, 2])
    }
    return {key: curve for key, curve in curves.items() if len(curve) > 1}


def _facts(runs: pd.DataFrame) -> list[tuple[str, str]]:
    facts = []
    for column, (label, text) in FACTS.items():
        values = runs[column].dropna() if column in runs else pd.Series(dtype=float)
        if values.empty or (column == "parameters_active" and runs["parameters_total"].equals(runs[column])):
            continue
        ends = list(dict.fromkeys(text(float(value)) for value in (values.min(), values.max())))
        facts.append(
            (label, "none" if column == "state_bytes_2k" and not values.any() else " to ".join(ends))
        )
    return facts


def _sample(runs: pd.DataFrame) -> GeneratedText | None:
    if "sample" not in runs:  # frames of earlier versions
        return None
    groups = [(key, rows.dropna(subset="sample")) for key, rows in scale_groups(runs)]
    groups = [(key, rows) for key, rows in groups if len(rows)]
    if not groups:
        return None
    key, rows = groups[-1]
    found = json.loads(rows.sort_values("seed")["sample"].iloc[0])
    return GeneratedText(label=task_label(*key), prompt=found["prompt"], text=found["text"])


def _curve(label: str, losses: pd.Series) -> Curve:
    points = thinned(losses.to_frame())["loss"]
    x = np.log(points.index.to_numpy(dtype=float))
    x = WIDTH * (x - x[0]) / (x[-1] - x[0])
    spread = float(points.max() - points.min()) or 1.0
    y = HEIGHT * (points.max() - points.to_numpy()) / spread
    return Curve(
        label=label, points=" ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True)),
        ends=f"{losses.iloc[0]:.2f} to {losses.iloc[-1]:.2f}",
    )  # fmt: skip
