"""Figures of training for the report. Each function returns None if a study has no data for it."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.style import (
    MOST_PANELS,
    PALETTE,
    SYMBOLS,
    log_axis,
    make_panels,
    palette_indices,
    styles,
)
from archbench.analysis.load.scale_order import TASK_SCALE, scale_groups, task_label

MOST_POINTS = 200
"""Maximum number of points of a training curve; limits the size of reports with many runs."""


def compute_to_target(comparison: Comparison) -> go.Figure | None:
    """Draw how many times fewer FLOPs than the baseline a model needs for a loss, a panel for each task."""
    groups = [group for group in scale_groups(comparison.levels) if group[1]["arm"].nunique() > 1]
    groups = groups[:MOST_PANELS]
    if not groups:
        return None
    figure, cells = make_panels([task_label(task, scale) for (task, scale), _ in groups])
    look, in_legend = styles(comparison.frame), set()
    for (_, rows), cell in zip(groups, cells, strict=True):
        for model, levels in rows.groupby("arm", sort=True):
            style = look[str(model)]
            trace = go.Scatter(
                x=levels["level"].tolist(), y=levels["fewer_flops"].tolist(),
                customdata=levels["fewer_seconds"].tolist(),
                mode="lines+markers", name=str(model), legendgroup=str(model),
                showlegend=model not in in_legend,
                line={"color": style["color"], "dash": style["dash"]}, marker={"symbol": style["symbol"]},
                hovertemplate=f"<b>{model}</b> to %{{x:.4f}}, against {levels['baseline'].iloc[0]}"
                "<br>FLOPs: %{y:.2f} times fewer<br>time: %{customdata:.2f} times less<extra></extra>",
            )  # fmt: skip
            figure.add_trace(trace, **cell)
            in_legend.add(model)
        metric = str(rows["metric"].iloc[0]).replace("_", " ")
        figure.update_xaxes(title_text=f"validation {metric}", **cell)
        baselines = rows["baseline"].unique()  # one for each likelihood type
        baseline = str(baselines[0]) if len(baselines) == 1 else "the baseline"
        figure.update_yaxes(
            title_text=f"times fewer FLOPs than {baseline}", **log_axis(rows["fewer_flops"]), **cell
        )
    return figure


def rate_curves(comparison: Comparison) -> go.Figure | None:
    """Draw validation score against learning rate, a panel per task; large marker: best, cross: diverged."""
    rates = comparison.rates
    groups = list(rates.groupby("task", sort=True))[:MOST_PANELS]
    if not groups:
        return None
    figure, cells = make_panels([str(task) for task, _ in groups])
    palette_index, in_legend = palette_indices([str(b) for b in rates["backbone"].unique()]), set()
    for (_, rows), cell in zip(groups, cells, strict=True):
        for line, runs in rows.groupby("line", sort=True):
            index = palette_index[str(runs["backbone"].iloc[0])]
            mean = runs.groupby("learning_rate")["validation"].mean()
            diverged = runs[runs["status"] == "diverged"]["learning_rate"].unique()
            finite = mean.dropna()
            higher = (runs["direction"] == "higher").any()
            optimum = (finite.idxmax() if higher else finite.idxmin()) if len(finite) else None
            common = {"legendgroup": str(line), "name": str(line)}
            figure.add_trace(
                go.Scatter(
                    x=mean.index.tolist(), y=mean.tolist(), mode="lines+markers",
                    showlegend=line not in in_legend, line={"color": PALETTE[index]},
                    marker={
                        "symbol": SYMBOLS[index], "size": [14 if r == optimum else 7 for r in mean.index]
                    },
                    hovertemplate=f"<b>{line}</b> at %{{x:.3g}}: %{{y:.4f}}<extra></extra>", **common,
                ), **cell,
            )  # fmt: skip
            if len(diverged) and len(finite):
                worst = float(finite.min() if higher else finite.max())
                cross = {"symbol": "x", "size": 11, "color": PALETTE[index]}
                figure.add_trace(
                    go.Scatter(
                        x=diverged.tolist(), y=[worst] * len(diverged), mode="markers", marker=cross,
                        showlegend=False,
                        hovertemplate=f"<b>{line}</b> diverged at %{{x:.3g}}<extra></extra>", **common,
                    ), **cell,
                )  # fmt: skip
            in_legend.add(line)
        figure.update_xaxes(title_text="learning rate", type="log", **cell)
        figure.update_yaxes(title_text=f"validation {rows['metric'].iloc[0]}".replace("_", " "), **cell)
    return figure


def gradient_norms(comparison: Comparison) -> go.Figure | None:
    """Draw the gradient norm of each run against its tokens, a panel for each task."""
    frame, history = comparison.frame, comparison.history
    if "grad_norm" not in history:
        return None
    rows = history[(history["kind"] == "train") & history["grad_norm"].map(math.isfinite)]
    rows = rows.merge(frame[["path", "arm", *TASK_SCALE]], on="path")
    groups = list(scale_groups(rows))[:MOST_PANELS]
    if not groups:
        return None
    figure, cells = make_panels([task_label(task, scale) for (task, scale), _ in groups])
    look, in_legend = styles(frame), set()
    for (_, runs), cell in zip(groups, cells, strict=True):
        for (model, _), steps in runs.groupby(["arm", "path"], sort=True):
            steps = steps.iloc[:: math.ceil(len(steps) / MOST_POINTS)]
            style = look[str(model)]
            figure.add_trace(
                go.Scatter(
                    x=steps["tokens"].tolist(), y=steps["grad_norm"].tolist(), mode="lines", name=str(model),
                    legendgroup=str(model), showlegend=model not in in_legend, opacity=0.8,
                    line={"color": style["color"], "dash": style["dash"], "width": 1.3},
                ), **cell,
            )  # fmt: skip
            in_legend.add(model)
        figure.update_xaxes(title_text="training tokens", **cell)
        figure.update_yaxes(title_text="gradient norm before clipping", **log_axis(runs["grad_norm"]), **cell)
    return figure
