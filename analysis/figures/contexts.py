"""Figures of quality against context: task lengths, needles by length and depth, loss by position.

Loss by position is not in a run's record: ``experiments.evaluate stretches=8 output=RUN/evaluate.json``
measures it, and the report reads that file if a run has one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from typing_extensions import TypedDict

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.style import MOST_PANELS, make_panels, styles
from archbench.analysis.load.scale_order import TASK_SCALE, scale_groups, task_label
from archbench.analysis.stats.arms import finished
from archbench.analysis.stats.extra_tests import TRAINED, settings, shared_setting
from archbench.analysis.stats.intervals import mean_interval
from archbench.experiments.runtime.errors import RunError
from archbench.experiments.runtime.json_state import Number, read_json

EVALUATED = "evaluate.json"
"""Name of a run's evaluation by position, in its folder."""


class Stretch(TypedDict):
    """Mean loss over a range of positions."""

    begin: int
    end: int
    nats_per_token: Number


class Evaluated(TypedDict):
    """The fields of evaluate.json that are used."""

    by_position: list[Stretch]


MAP_AXES = ("depth", "sequence_length")
"""The two settings of extra evaluations that form a map: vertical and horizontal axis."""


def is_map(tests: list[str]) -> bool:
    """Return True if all extra evaluations in ``tests`` set exactly a length and a depth."""
    changed = [settings(test) for test in tests if test != TRAINED]
    return bool(changed) and all(tuple(names) == MAP_AXES for names in changed)


def further_curves(comparison: Comparison) -> go.Figure | None:
    """Draw the score on each extra evaluation, a panel for each task; None if there are only maps."""
    frame, scores = comparison.frame, comparison.further
    panels = [(p, rows) for p, rows in scale_groups(scores) if not is_map(list(rows["test"]))]
    if not panels:
        return None
    figure, cells = make_panels([task_label(task, scale) for (task, scale), _ in panels])
    style, in_legend = styles(frame), set()
    for ((task, _), rows), cell in zip(panels, cells, strict=True):
        shared = shared_setting(rows["test"])
        for model, points in rows.groupby("arm", sort=False):
            look = style[str(model)]
            labels = [test.removeprefix(f"{shared}=").replace(" ", "<br>") for test in points["test"]]
            trace = go.Scatter(
                x=["as<br>trained" if test == TRAINED else label
                   for test, label in zip(points["test"], labels, strict=True)],
                y=points["score"].tolist(), mode="lines+markers", name=str(model),
                legendgroup=str(model), showlegend=model not in in_legend,
                line={"color": look["color"], "dash": look["dash"]},
                marker={"symbol": look["symbol"], "size": 8},
                error_y={"type": "data", "array": points["half_width"].tolist(), "thickness": 1},
                hovertemplate=f"{model}, %{{x}}: %{{y:.4f}}<extra></extra>",
            )  # fmt: skip
            figure.add_trace(trace, **cell)
            in_legend.add(model)
        title = shared.replace("_", " ") or "settings of the test that differ"
        figure.update_xaxes(type="category", title_text=title, automargin=True, **cell)
        figure.update_yaxes(title_text=_metric(frame, str(task)), **cell)
    return figure


def _metric(frame: pd.DataFrame, task: str) -> str:
    """Return the metric of a task as an axis title."""
    return str(frame[frame["task"] == task]["metric"].dropna().iloc[0]).replace("_", " ")


def recall_maps(comparison: Comparison) -> go.Figure | None:
    """Draw the score by length and depth of the needle, a map for each arm; None without such evaluations."""
    frame, scores = comparison.frame, comparison.further
    panels = [
        ((task, model), rows[rows["test"] != TRAINED])
        for (task, _, model), rows in scale_groups(scores, [*TASK_SCALE, "arm"])
        if is_map(list(rows["test"]))
    ][:MOST_PANELS]
    if not panels:
        return None
    figure, cells = make_panels([f"{model}, {task}" for (task, model), _ in panels])
    for ((task, model), rows), cell in zip(panels, cells, strict=True):
        axes = pd.DataFrame([settings(test) for test in rows["test"]], index=rows.index)
        table = rows.assign(**axes.astype(float)).pivot(
            index=MAP_AXES[0], columns=MAP_AXES[1], values="score"
        )
        trace = go.Heatmap(
            x=[f"{length:g}" for length in table.columns], y=[f"{depth:g}" for depth in table.index],
            z=table.to_numpy().tolist(), zmin=0, zmax=1, colorscale="Cividis", texttemplate="%{z:.2f}",
            xgap=2, ygap=2, name=str(model), showscale=cell == cells[-1],
            colorbar={"title": {"text": _metric(frame, str(task)), "side": "right"}},
            hovertemplate=f"<b>{model}</b>, length %{{x}}, depth %{{y}}: %{{z:.4f}}<extra></extra>",
        )  # fmt: skip
        figure.add_trace(trace, **cell)
        figure.update_xaxes(type="category", title_text="sequence length", **cell)
        figure.update_yaxes(type="category", title_text="depth", autorange="reversed", **cell)
    return figure


def read_positions(frame: pd.DataFrame) -> pd.DataFrame:
    """Read loss by position from the finished runs' ``evaluate.json``.

    Columns: ``task scale arm seed begin end nats``, a row for each stretch of each run. A damaged file is
    left out with a warning.
    """
    rows: list[dict[str, object]] = []
    for run in frame[finished(frame)].to_dict("records"):
        try:
            evaluation = read_json(Path(run["path"]) / EVALUATED, Evaluated, "delete it")
        except RunError as error:
            sys.stderr.write(f"warning: {error}\n")
            continue
        if evaluation is None:
            continue
        run_columns = {key: run[key] for key in ("task", "scale", "arm", "seed")}
        rows += [
            run_columns | {"begin": s["begin"], "end": s["end"], "nats": float(s["nats_per_token"])}
            for s in evaluation["by_position"]
        ]
    return pd.DataFrame(rows, columns=["task", "scale", "arm", "seed", "begin", "end", "nats"])


def position_curves(comparison: Comparison) -> go.Figure | None:
    """Draw nats per token by position, a panel for each task: means over seeds with 95% t-intervals.

    A point is drawn at the middle of its range of positions. Raises ValueError where an
    evaluation cannot be read.
    """
    groups = list(scale_groups(read_positions(comparison.frame)))[:MOST_PANELS]
    if not groups:
        return None
    figure, cells = make_panels([task_label(task, scale) for (task, scale), _ in groups])
    look, in_legend = styles(comparison.frame), set()
    for (_, rows), cell in zip(groups, cells, strict=True):
        for model, model_rows in rows.groupby("arm", sort=True):
            style = look[str(model)]
            stretches = model_rows.groupby(["begin", "end"], sort=True)["nats"]
            means = [mean_interval(nats.tolist()) for _, nats in stretches]
            spans = [span for span, _ in stretches]
            trace = go.Scatter(
                x=[(begin + end - 1) / 2 for begin, end in spans], y=[estimate.mean for estimate in means],
                error_y={"type": "data", "array": [e.half_width or 0.0 for e in means], "thickness": 1},
                customdata=[f"{begin} to {end - 1}" for begin, end in spans],
                mode="lines+markers", name=str(model), legendgroup=str(model),
                showlegend=model not in in_legend,
                line={"color": style["color"], "dash": style["dash"]}, marker={"symbol": style["symbol"]},
                hovertemplate=f"<b>{model}</b>, tokens %{{customdata}}: %{{y:.4f}}<extra></extra>",
            )  # fmt: skip
            figure.add_trace(trace, **cell)
            in_legend.add(model)
        figure.update_xaxes(title_text="position in the sequence, tokens", **cell)
        figure.update_yaxes(title_text="nats per token", **cell)
    return figure
