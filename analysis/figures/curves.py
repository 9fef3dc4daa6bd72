"""Learning curves of a study: the validation metric against tokens, FLOPs or seconds."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go

from analysis.figures.style import faint, make_panels, styles
from analysis.stats.arms import TASK_SCALE

AXES = {"tokens": "training tokens", "flops": "training FLOPs", "seconds": "seconds"}
"""Horizontal axes of the learning curves, in the order the curves carry them in ``customdata``."""

SEED = "seed"
"""Value of ``meta`` of the lines of single seeds: the page has a switch that shows them."""


def learning_curves(frame: pd.DataFrame, history: pd.DataFrame) -> go.Figure | None:
    """Draw the validation metric against training tokens, a panel for each task; None without curves.

    Thick lines are means over seeds, bands range from the lowest to the highest seed. Lines of single seeds
    are hidden and marked ``SEED``. Reference lines refer to the test split, so they are not drawn. Every
    point stores its tokens, FLOPs and seconds in ``customdata``, from which the page can switch the axis.
    """
    rows = history[history["kind"] == "validation"].merge(frame, on="path", suffixes=("", "_run"))
    panels = []
    for table, runs in rows.groupby(TASK_SCALE):
        metrics = [str(m) for m in runs["metric"].dropna().unique() if m in runs and runs[m].notna().any()]
        panels += [(table, metrics[0])] if metrics else []
    if not panels:
        return None
    figure, cells = make_panels([f"{task}, {scale}" for (task, scale), _ in panels])
    style, in_legend = styles(frame), set()
    for ((task, scale), metric), cell in zip(panels, cells, strict=True):
        curves = rows[(rows["task"] == task) & (rows["scale"] == scale)]
        curves = curves[curves[metric].map(math.isfinite)]
        for model, runs in curves.groupby("arm"):
            legend = model not in in_legend
            for trace in _arm_curves(str(model), runs, metric, style[str(model)], legend=legend):
                figure.add_trace(trace, **cell)
            in_legend.add(model)
        figure.update_yaxes(title_text=metric.replace("_", " "), **cell)
        figure.update_xaxes(title_text=AXES["tokens"], **cell)
    return figure


def _arm_curves(
    model: str, runs: pd.DataFrame, metric: str, style: dict[str, str], *, legend: bool
) -> list[go.Scatter]:
    """Return the lines of one arm: the mean, and with multiple seeds also the band and thin hidden lines.

    Band and mean use the seeds with the most steps: an interrupted run has only its thin line.
    """
    columns = [*AXES, metric]
    line = {"color": style["color"], "dash": style["dash"]}
    ends = runs.groupby("path")["step"].transform("max")
    furthest = runs[ends == ends.max()]
    steps = furthest.groupby("step")
    complete = steps["path"].nunique() == furthest["path"].nunique()
    mean = steps[columns].mean()[complete]
    traces = []
    if runs["path"].nunique() > 1:
        edge = {"hoverinfo": "skip", "showlegend": False}
        low, high = (mean.assign(**{metric: bound}) for bound in (steps[metric].min(), steps[metric].max()))
        traces = [
            _curve(low, model, {"width": 0}, **edge),
            _curve(high, model, {"width": 0}, fill="tonexty", fillcolor=faint(style["color"]), **edge),
            *(
                _curve(
                    seed[columns], model, line | {"width": 1}, opacity=0.7, visible=False, meta=SEED, **edge
                )
                for _, seed in runs.groupby("path")
            ),
        ]
    hover = (
        f"<b>{model}</b><br>%{{y:.4f}}<br>tokens %{{customdata[0]:.4s}}, FLOPs %{{customdata[1]:.3g}}, "
        "%{customdata[2]:.1f} s<extra></extra>"
    )
    traces.append(
        _curve(
            mean, model, line | {"width": 2.5}, mode="lines+markers", showlegend=legend, hovertemplate=hover,
            marker={"symbol": style["symbol"], "size": 6},
        )
    )  # fmt: skip
    return traces


def _curve(points: pd.DataFrame, model: str, line: dict[str, object], **settings: object) -> go.Scatter:
    """Return one line; the last column of ``points`` has its y values."""
    return go.Scatter(
        x=points["tokens"].tolist(), y=points.iloc[:, -1].tolist(),
        customdata=points[[*AXES]].to_numpy().tolist(), name=model, legendgroup=model, line=line,
        **{"mode": "lines", **settings},
    )  # fmt: skip
