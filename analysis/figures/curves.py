"""Learning curves of a study: training loss and validation metric against tokens, FLOPs or seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.style import MOST_PANELS, faint, make_panels, styles
from archbench.analysis.load.scale_order import TASK_SCALE, scale_groups, task_label

AXES = {"tokens": "training tokens", "flops": "training FLOPs", "seconds": "seconds of training"}
"""Horizontal axes of the learning curves, in the order the curves carry them in ``customdata``."""

SEED = "seed"
"""Value of ``meta`` of the lines of single seeds: the page has a switch that shows them."""
MOST_POINTS = 100
"""Maximum number of points of a line; limits the size of reports with many runs."""
FEW_POINTS = 20
"""Number of points up to which a line has markers."""


def loss_curves(comparison: Comparison) -> go.Figure | None:
    """Draw the logged training loss, a panel for each task; None if no run logged one twice.

    Losses of different objectives are not comparable; the line's tooltip states the objective.
    """
    frame, history = comparison.frame, comparison.history
    if "loss" not in history:
        return None
    rows = history[(history["kind"] == "train") & np.isfinite(history["loss"])]
    return _curves(frame, rows.assign(value=rows["loss"]), lambda runs: "training loss")


def learning_curves(comparison: Comparison) -> go.Figure | None:
    """Draw the validation metric, a panel for each task; None if no run was validated twice.

    Reference lines refer to the test split, so they are not drawn.
    """
    frame, history = comparison.frame, comparison.history
    rows = history[history["kind"] == "validation"].merge(frame[["path", "metric"]], on="path")
    rows["value"] = np.nan
    for metric in rows["metric"].dropna().unique():
        if metric in rows:
            rows["value"] = rows["value"].where(rows["metric"] != metric, rows[metric])
    rows = rows[np.isfinite(rows["value"])].drop(columns="metric")
    return _curves(frame, rows, lambda runs: f"validation {runs['metric'].iloc[0]}".replace("_", " "))


def _curves(
    frame: pd.DataFrame, rows: pd.DataFrame, y_title: Callable[[pd.DataFrame], str]
) -> go.Figure | None:
    """Draw the column ``value`` of ``rows`` against training tokens.

    Thick lines are means over seeds, bands range from the lowest to the highest seed. Lines of single seeds
    are hidden and marked ``SEED``. Every point stores its tokens, FLOPs and seconds in ``customdata``, from
    which the page can switch the axis.
    """
    rows = rows.merge(frame[["path", "arm", "objective", "metric", *TASK_SCALE]], on="path")
    panels = [group for group in scale_groups(rows) if _is_curve(group[1])][:MOST_PANELS]
    if not panels:
        return None
    figure, cells = make_panels([task_label(task, scale) for (task, scale), _ in panels])
    style, in_legend = styles(frame), set()
    for (_, curves), cell in zip(panels, cells, strict=True):
        for model, runs in curves.groupby("arm", sort=True):
            for trace in _arm_curves(str(model), runs, style[str(model)], legend=model not in in_legend):
                figure.add_trace(trace, **cell)
            in_legend.add(model)
        figure.update_yaxes(title_text=y_title(curves), **cell)
        figure.update_xaxes(title_text=AXES["tokens"], **cell)
    return figure


def _is_curve(rows: pd.DataFrame) -> bool:
    return bool((rows.groupby("path").size() > 1).any())


def _arm_curves(model: str, runs: pd.DataFrame, style: dict[str, str], *, legend: bool) -> list[go.Scatter]:
    """Return the lines of one arm: the mean, and with multiple seeds also the band and thin hidden lines.

    Band and mean use the seeds with the most steps: an interrupted run has only its thin line.
    """
    columns = [*AXES, "value"]
    line = {"color": style["color"], "dash": style["dash"]}
    ends = runs.groupby("path")["step"].transform("max")
    furthest = runs[ends == ends.max()]
    steps = furthest.groupby("step")
    complete = steps["path"].nunique() == furthest["path"].nunique()
    mean = steps[columns].mean()[complete]
    traces = []
    if runs["path"].nunique() > 1:
        edge = {"hoverinfo": "skip", "showlegend": False}
        low, high = (mean.assign(value=bound) for bound in (steps["value"].min(), steps["value"].max()))
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
        f"<b>{model}</b>, {runs['objective'].iloc[0]}<br>%{{y:.4f}}<br>tokens %{{customdata[0]:.4s}}, "
        "FLOPs %{customdata[1]:.3g}, %{customdata[2]:.1f} s<extra></extra>"
    )
    mode = "lines+markers" if len(mean) <= FEW_POINTS else "lines"
    traces.append(
        _curve(
            mean, model, line | {"width": 2.5}, mode=mode, showlegend=legend, hovertemplate=hover,
            marker={"symbol": style["symbol"], "size": 6},
        )
    )  # fmt: skip
    return traces


def _curve(points: pd.DataFrame, model: str, line: dict[str, object], **settings: object) -> go.Scatter:
    """Return one line; the last column of ``points`` has its y values."""
    points = thinned(points)
    return go.Scatter(
        x=_short(points["tokens"]), y=_short(points["value"]),
        customdata=[_short(row) for row in points[[*AXES]].to_numpy()],
        name=model, legendgroup=model, line=line, **{"mode": "lines", **settings},
    )  # fmt: skip


def thinned(points: pd.DataFrame) -> pd.DataFrame:
    """Return at most ``MOST_POINTS`` rows: half of them evenly spaced, half as on a logarithmic axis."""
    if len(points) <= MOST_POINTS:
        return points
    half = MOST_POINTS // 2
    even = np.linspace(0, len(points) - 1, half)
    logarithmic = np.geomspace(1, len(points), half) - 1
    return points.iloc[np.unique(np.concatenate([even, logarithmic]).astype(int))]


def _short(values: Iterable[float]) -> list[float]:
    """Return values with seven digits, which keeps the page small."""
    return [float(f"{value:.7g}") for value in values]
