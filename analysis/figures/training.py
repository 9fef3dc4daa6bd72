"""Figures of training for the report: each None where a study has nothing for it."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go

from analysis.figures.style import MOST_PANELS, PALETTE, SYMBOLS, log_axis, make_panels, places, styles
from analysis.stats.arms import TASK_SCALE

MOST_POINTS = 200
"""Points of a training curve, so that a report of a hundred runs stays small."""


def compute_to_target(reached: pd.DataFrame, frame: pd.DataFrame) -> go.Figure | None:
    """Times fewer FLOPs than the baseline to each loss, a panel for each task; from ``levels_reached``."""
    groups = list(reached.groupby(TASK_SCALE, sort=True))[:MOST_PANELS]
    if not groups:
        return None
    figure, cells = make_panels([f"{task}, {scale}" for (task, scale), _ in groups])
    look, named = styles(frame), set()
    for (_, rows), cell in zip(groups, cells, strict=True):
        for arm, own in rows.groupby("arm", sort=True):
            style = look[str(arm)]
            trace = go.Scatter(
                x=own["level"].tolist(), y=own["fewer_flops"].tolist(),
                customdata=own["fewer_seconds"].tolist(),
                mode="lines+markers", name=str(arm), legendgroup=str(arm), showlegend=arm not in named,
                line={"color": style["color"], "dash": style["dash"]}, marker={"symbol": style["symbol"]},
                hovertemplate=f"<b>{arm}</b> to %{{x:.4f}}, against {own['baseline'].iloc[0]}"
                "<br>FLOPs: %{y:.2f} times fewer<br>time: %{customdata:.2f} times less<extra></extra>",
            )  # fmt: skip
            figure.add_trace(trace, **cell)
            named.add(arm)
        metric = str(rows["metric"].iloc[0]).replace("_", " ")
        figure.update_xaxes(title_text=f"validation {metric}", **cell)
        baselines = rows["baseline"].unique()  # each likelihood class has its own
        other = str(baselines[0]) if len(baselines) == 1 else "the baseline"
        figure.update_yaxes(
            title_text=f"times fewer FLOPs than {other}", **log_axis(rows["fewer_flops"]), **cell
        )
    return figure


def rate_curves(rates: pd.DataFrame) -> go.Figure | None:
    """Validation against learning rate, a panel for each task; the best is ringed, a cross diverged.

    From ``analysis.stats.learning_rates.sensitivity.rate_runs``.
    """
    groups = list(rates.groupby("task", sort=True))[:MOST_PANELS]
    if not groups:
        return None
    figure, cells = make_panels([str(task) for task, _ in groups])
    place, named = places([str(b) for b in rates["backbone"].unique()]), set()
    for (_, rows), cell in zip(groups, cells, strict=True):
        for line, own in rows.groupby("line", sort=True):
            index = place[str(own["backbone"].iloc[0])]
            mean = own.groupby("learning_rate")["validation"].mean()
            lost = own[own["status"] == "diverged"]["learning_rate"].unique()
            finite = mean.dropna()
            higher = (own["direction"] == "higher").any()
            best = (finite.idxmax() if higher else finite.idxmin()) if len(finite) else None
            common = {"legendgroup": str(line), "name": str(line)}
            figure.add_trace(
                go.Scatter(
                    x=mean.index.tolist(), y=mean.tolist(), mode="lines+markers",
                    showlegend=line not in named,
                    line={"color": PALETTE[index]},
                    marker={"symbol": SYMBOLS[index], "size": [14 if r == best else 7 for r in mean.index]},
                    hovertemplate=f"<b>{line}</b> at %{{x:.3g}}: %{{y:.4f}}<extra></extra>", **common,
                ), **cell,
            )  # fmt: skip
            if len(lost) and len(finite):
                worst = float(finite.min() if higher else finite.max())
                cross = {"symbol": "x", "size": 11, "color": PALETTE[index]}
                figure.add_trace(
                    go.Scatter(
                        x=lost.tolist(), y=[worst] * len(lost), mode="markers", marker=cross,
                        showlegend=False,
                        hovertemplate=f"<b>{line}</b> diverged at %{{x:.3g}}<extra></extra>", **common,
                    ), **cell,
                )  # fmt: skip
            named.add(line)
        figure.update_xaxes(title_text="learning rate", type="log", **cell)
        figure.update_yaxes(title_text=f"validation {rows['metric'].iloc[0]}".replace("_", " "), **cell)
    return figure


def gradient_norms(frame: pd.DataFrame, history: pd.DataFrame) -> go.Figure | None:
    """Gradient norm of each run against its tokens, a panel for each task."""
    if "grad_norm" not in history:
        return None
    rows = history[(history["kind"] == "train") & history["grad_norm"].map(math.isfinite)]
    rows = rows.merge(frame[["path", "arm", *TASK_SCALE]], on="path")
    groups = list(rows.groupby(TASK_SCALE, sort=True))[:MOST_PANELS]
    if not groups:
        return None
    figure, cells = make_panels([f"{task}, {scale}" for (task, scale), _ in groups])
    look, named = styles(frame), set()
    for (_, runs), cell in zip(groups, cells, strict=True):
        for (arm, _), own in runs.groupby(["arm", "path"], sort=True):
            own = own.iloc[:: math.ceil(len(own) / MOST_POINTS)]
            style = look[str(arm)]
            figure.add_trace(
                go.Scatter(
                    x=own["tokens"].tolist(), y=own["grad_norm"].tolist(), mode="lines", name=str(arm),
                    legendgroup=str(arm), showlegend=arm not in named, opacity=0.8,
                    line={"color": style["color"], "dash": style["dash"], "width": 1.3},
                ), **cell,
            )  # fmt: skip
            named.add(arm)
        figure.update_xaxes(title_text="training tokens", **cell)
        figure.update_yaxes(title_text="gradient norm before clipping", **log_axis(runs["grad_norm"]), **cell)
    return figure
