"""Figures of scores: final scores, differences from a baseline, and profiles over all tasks."""

from __future__ import annotations

import math
import textwrap

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.style import (
    PALETTE,
    PANEL_HEIGHT,
    REFERENCE_COLOUR,
    make_panels,
    palette_indices,
    styles,
)
from archbench.analysis.load.scale_order import scale_groups, task_label
from archbench.analysis.stats.aggregates import performance_profile
from archbench.analysis.stats.arms import finished
from archbench.analysis.stats.targets.performance_profile import task_scores

ROWS = 6
"""Arms whose labels fit in a panel of the default height."""


def final_scores(comparison: Comparison) -> go.Figure | None:
    """Draw test scores: mean with 95% t-interval, and the seeds as small dots; None without scores."""
    frame, table = comparison.frame, comparison.table
    table = table[table["score"].map(math.isfinite)]
    groups = [(key, rows) for key, rows in scale_groups(table) if (rows["kind"] == "arm").any()]
    if not groups:
        return None
    figure, cells = make_panels([task_label(task, scale) for (task, scale), _ in groups])
    style = styles(frame)
    for ((task, scale), rows), cell in zip(groups, cells, strict=True):
        runs = frame[finished(frame) & (frame["task"] == task) & (frame["scale"] == scale)]
        for _, row in rows.iterrows():
            for trace in _score_points(row, runs, style):
                figure.add_trace(trace, **cell)
        metric = rows["metric"].iloc[0].replace("_", " ")
        figure.update_xaxes(title_text=f"{metric}, {rows['direction'].iloc[0]} is better", **cell)
        # Top to bottom in the order of the table.
        figure.update_yaxes(autorange="reversed", automargin=True, **cell)
    most = max(len(rows) for _, rows in groups)
    figure.update_layout(height=figure.layout.height * max(1, most / ROWS), margin_t=40)  # it has no legend
    return figure


def _score_points(row: pd.Series, runs: pd.DataFrame, style: dict[str, dict[str, str]]) -> list[go.Scatter]:
    if row["kind"] == "reference":
        marker: dict[str, object] = {"color": REFERENCE_COLOUR, "symbol": "line-ns-open", "size": 14}
        return [_point(row, [row["score"]], row["arm"], marker)]
    label = row["arm"] + (f", {row['likelihood']}" if isinstance(row["likelihood"], str) else "")
    look = style[row["arm"]]
    seeds = runs[(runs["cell"] == row["cell"]) & (runs["digest"] == row["digest"])]["score"].tolist()
    marker = {"color": look["color"], "symbol": look["symbol"], "size": 11}
    mean = _point(row, [row["score"]], label, marker)
    if math.isfinite(row["low"]):
        mean.error_x = {
            "type": "data", "symmetric": False, "array": [row["high"] - row["score"]],
            "arrayminus": [row["score"] - row["low"]], "color": look["color"], "thickness": 2,
        }  # fmt: skip
    small = {"color": look["color"], "symbol": "circle-open", "size": 5}
    return [_point(row, seeds, label, small), mean]


def _point(row: pd.Series, values: list[float], label: str, marker: dict[str, object]) -> go.Scatter:
    label = "<br>".join(textwrap.wrap(label, 20))
    return go.Scatter(
        x=values, y=[label] * len(values), mode="markers", marker=marker, name=row["arm"], showlegend=False,
        hovertemplate=f"{label}: %{{x:.4f}}<extra></extra>",
    )  # fmt: skip


def forest(comparison: Comparison) -> go.Figure | None:
    """Draw the difference from the baseline on each task (right: better), with a row for each arm."""
    gains = comparison.gains
    if gains.empty:
        return None
    figure, [cell] = make_panels(["better than the baseline, in units of the score; corrected 95% intervals"])
    look = styles(comparison.frame)
    names = list(dict.fromkeys(gains["task"] + ", " + gains["scale"]))
    arms = sorted(gains["arm"].unique())
    for index, model in enumerate(arms):
        rows, style = gains[gains["arm"] == model], look[str(model)]
        height = (index + 0.5) / len(arms) - 0.5
        figure.add_trace(
            go.Scatter(
                x=rows["gain"].tolist(),
                y=[names.index(name) + 0.8 * height for name in rows["task"] + ", " + rows["scale"]],
                mode="markers", name=str(model), customdata=rows["task"].tolist(),
                error_x={
                    "type": "data", "symmetric": False, "array": (rows["high"] - rows["gain"]).tolist(),
                    "arrayminus": (rows["gain"] - rows["low"]).tolist(), "color": style["color"],
                },
                marker={"color": style["color"], "symbol": style["symbol"], "size": 9},
                hovertemplate=f"<b>{model}</b>, %{{customdata}}: %{{x:.4f}}<extra></extra>",
            ), **cell,
        )  # fmt: skip
    figure.update_yaxes(
        tickvals=list(range(len(names))), ticktext=names, range=[len(names) - 0.5, -0.5], automargin=True,
        zeroline=False, **cell,
    )  # fmt: skip
    figure.update_layout(height=max(PANEL_HEIGHT, 120 + 14 * len(names) * len(arms)))
    return figure


def profiles(comparison: Comparison) -> go.Figure | None:
    """Draw the fraction of runs above each score, as the mean over tasks; None below ``MIN_TASKS`` tasks."""
    scores = task_scores(comparison.frame)
    if not scores:
        return None
    figure, cells = make_panels([f"performance profile, {scale}" for scale in scores])
    thresholds = np.linspace(0, 1, 101)
    for (_, by_line), cell in zip(scores.items(), cells, strict=True):
        palette_index = palette_indices([line.split(" ")[0] for line in by_line])
        for line, tasks in by_line.items():
            above = performance_profile(list(tasks.values()), thresholds.tolist())
            figure.add_trace(
                go.Scatter(x=thresholds.tolist(), y=above.tolist(), mode="lines", name=line, legendgroup=line,
                           line={"color": PALETTE[palette_index[line.split(" ")[0]]], "shape": "hv"}), **cell,
            )  # fmt: skip
        figure.update_xaxes(title_text="score", **cell)
        figure.update_yaxes(title_text="fraction of runs above", **cell)
    return figure
