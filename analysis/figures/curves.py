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
"""Mark of the lines of single seeds, in ``meta``: a switch of the page shows them."""


def learning_curves(frame: pd.DataFrame, history: pd.DataFrame) -> go.Figure | None:
    """Validation metric against training tokens, a panel for each task; None without curves.

    Thick lines are means over seeds, bands reach from the lowest to the highest seed; the seeds
    themselves are there, hidden, marked ``SEED``. References are of the test split, so that none is drawn
    here. Every point carries its tokens, FLOPs and seconds in
    ``customdata``, from which the page's switch takes the other axes.
    """
    rows = history[history["kind"] == "validation"].merge(frame, on="path", suffixes=("", "_run"))
    panels = [(place, metric) for place, runs in rows.groupby(TASK_SCALE) if (metric := _metric(runs))]
    if not panels:
        return None
    figure, cells = make_panels([f"{task}, {scale}" for (task, scale), _ in panels])
    style, named = styles(frame), set()
    for ((task, scale), metric), cell in zip(panels, cells, strict=True):
        here = rows[(rows["task"] == task) & (rows["scale"] == scale)]
        here = here[here[metric].map(math.isfinite)]
        for arm, runs in here.groupby("arm"):
            for trace in _arm_curves(str(arm), runs, metric, style[str(arm)], legend=arm not in named):
                figure.add_trace(trace, **cell)
            named.add(arm)
        figure.update_yaxes(title_text=metric.replace("_", " "), **cell)
        figure.update_xaxes(title_text=AXES["tokens"], **cell)
    return figure


def _metric(rows: pd.DataFrame) -> str | None:
    """The metric of one task's curves; None where nothing was validated."""
    known = [m for m in rows["metric"].dropna().unique() if m in rows and rows[m].notna().any()]
    return str(known[0]) if known else None


def _arm_curves(
    arm: str, runs: pd.DataFrame, metric: str, style: dict[str, str], *, legend: bool
) -> list[go.Scatter]:
    """Return the lines of one arm: the mean, and of several seeds the band and thin hidden lines.

    Band and mean are of the seeds that went furthest: one that was killed is a line of its own alone.
    """
    columns = [*AXES, metric]
    line = {"color": style["color"], "dash": style["dash"]}
    ends = runs.groupby("path")["step"].transform("max")
    furthest = runs[ends == ends.max()]
    steps = furthest.groupby("step")
    whole = steps["path"].nunique() == furthest["path"].nunique()
    mean = steps[columns].mean()[whole]
    traces = []
    if runs["path"].nunique() > 1:
        edge = {"hoverinfo": "skip", "showlegend": False}
        low, high = (mean.assign(**{metric: end}) for end in (steps[metric].min(), steps[metric].max()))
        traces = [
            _curve(low, arm, {"width": 0}, **edge),
            _curve(high, arm, {"width": 0}, fill="tonexty", fillcolor=faint(style["color"]), **edge),
            *(
                _curve(seed[columns], arm, line | {"width": 1}, opacity=0.7, visible=False, meta=SEED, **edge)
                for _, seed in runs.groupby("path")
            ),
        ]
    hover = (
        f"<b>{arm}</b><br>%{{y:.4f}}<br>tokens %{{customdata[0]:.4s}}, FLOPs %{{customdata[1]:.3g}}, "
        "%{customdata[2]:.1f} s<extra></extra>"
    )
    traces.append(
        _curve(
            mean, arm, line | {"width": 2.5}, mode="lines+markers", showlegend=legend, hovertemplate=hover,
            marker={"symbol": style["symbol"], "size": 6},
        )
    )  # fmt: skip
    return traces


def _curve(points: pd.DataFrame, arm: str, line: dict[str, object], **settings: object) -> go.Scatter:
    """Return one line; the last column of ``points`` is its height."""
    return go.Scatter(
        x=points["tokens"].tolist(), y=points.iloc[:, -1].tolist(),
        customdata=points[[*AXES]].to_numpy().tolist(), name=arm, legendgroup=arm, line=line,
        **{"mode": "lines", **settings},
    )  # fmt: skip
