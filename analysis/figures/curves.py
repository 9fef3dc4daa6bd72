"""Plotly figures of a study. Each is a function of the results frame (and the curves).

One colour and marker for each backbone, everywhere: those of ``FAMILIES`` have their own in every study;
other backbones of a study, in alphabetical order, take what of ``PALETTE`` it leaves free. Arms that
share a backbone share its colour and differ in the dash of their lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.stats.arms import PLACE, arm_table

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999999", "#C9B800")
"""Okabe and Ito's colour-blind safe colours. Grey stands for their black, which a dark page
would swallow; their yellow comes last and darkened, for a white page."""

FAMILIES = ("decoder", "mamba", "s4", "moe", "masked_diffusion", "encoder", "encoder_decoder", "hybrid")
"""Backbones with the colour of ``PALETTE`` and the marker of ``SYMBOLS`` at the same place."""

FORMER = {"diffusion": "masked_diffusion"}
"""Names of backbones in frames that version 0.1 recorded, and their names now."""

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon")
DASHES = ("solid", "dash", "dot", "dashdot")
REFERENCE_COLOUR = "#8A8A8A"

AXES = {"tokens": "training tokens", "flops": "training FLOPs", "seconds": "seconds"}
"""Horizontal axes of the learning curves, in the order the curves carry them in ``customdata``."""

SEED = "seed"
"""What the lines of single seeds are marked with, in ``meta``: a switch of the page shows them."""

PANEL_HEIGHT = 400
MOST_PANELS = 8
"""A figure with a panel for each task shows no more of them; the tables have all."""


def places(backbones: list[str]) -> dict[str, int]:
    """Where in ``PALETTE`` and ``SYMBOLS`` each backbone of a study has its colour and marker."""
    current = {name: FORMER.get(name, name) for name in backbones}
    found = {name: FAMILIES.index(now) for name, now in current.items() if now in FAMILIES}
    free = [i for i in range(len(PALETTE)) if i not in found.values()] or list(range(len(PALETTE)))
    others = sorted(name for name in backbones if name not in found)
    return found | {name: free[i % len(free)] for i, name in enumerate(others)}


def styles(frame: pd.DataFrame) -> dict[str, dict[str, str]]:
    """Colour, marker symbol and dash for each arm."""
    found, place = {}, places([str(name) for name in frame["backbone"].unique()])
    for backbone, runs in frame.groupby("backbone"):
        index = place[str(backbone)]
        for number, arm in enumerate(sorted(runs["arm"].unique())):
            found[str(arm)] = {
                "color": PALETTE[index],
                "symbol": SYMBOLS[index],
                "dash": DASHES[number % len(DASHES)],
            }
    return found


def learning_curves(frame: pd.DataFrame, history: pd.DataFrame) -> go.Figure | None:
    """Validation metric against training tokens, a panel for each task; None without curves.

    Thick lines are means over seeds, bands reach from the lowest to the highest seed; the seeds
    themselves are there, hidden, marked ``SEED``. Every point carries its tokens, FLOPs and seconds in
    ``customdata``, from which the page's switch takes the other axes.
    """
    rows = history[history["kind"] == "validation"].merge(frame, on="path", suffixes=("", "_run"))
    panels = [(place, metric) for place, runs in rows.groupby(PLACE) if (metric := _metric(runs))]
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
        arms = arm_table(frame[(frame["task"] == task) & (frame["scale"] == scale)])
        for _, line in arms[arms["kind"] == "reference"].iterrows():
            figure.add_trace(_reference_line(line, here), **cell)
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
    """Of several seeds the band from lowest to highest and thin hidden lines; a thick line, their mean.

    Band and mean end where the first seed ends.
    """
    columns = [*AXES, metric]
    line = {"color": style["color"], "dash": style["dash"]}
    steps = runs.groupby("step")
    whole = steps["path"].nunique() == runs["path"].nunique()
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
    """One line; the last column of ``points`` is its height."""
    return go.Scatter(
        x=points["tokens"].tolist(), y=points.iloc[:, -1].tolist(),
        customdata=points[[*AXES]].to_numpy().tolist(), name=arm, legendgroup=arm, line=line,
        **{"mode": "lines", **settings},
    )  # fmt: skip


def _reference_line(line: pd.Series, rows: pd.DataFrame) -> go.Scatter:
    """A dashed line across all curves of a panel."""
    ends = [[float(f(rows[axis])) for axis in AXES] for f in (pd.Series.min, pd.Series.max)]
    return go.Scatter(
        x=[end[0] for end in ends], y=[line["score"]] * 2, customdata=ends, mode="lines+text",
        text=["", line["arm"]], textposition="top left", showlegend=False,
        line={"color": REFERENCE_COLOUR, "dash": "dash", "width": 1.5},
        hovertemplate=f"{line['arm']}: %{{y:.4f}}<extra></extra>",
    )  # fmt: skip


def make_panels(titles: list[str]) -> tuple[go.Figure, list[dict[str, int]]]:
    """A figure with a panel for each title, two in a row, and where each panel stands."""
    columns = min(2, len(titles))
    lines = math.ceil(len(titles) / columns)
    figure = make_subplots(
        rows=lines, cols=columns, subplot_titles=titles,
        horizontal_spacing=0.18, vertical_spacing=0.36 / lines,
    )  # fmt: skip
    # Clear backgrounds, and colours set by the page: it knows whether it is light or dark.
    figure.update_layout(
        template="none", height=PANEL_HEIGHT * lines,
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 70, "r": 20, "t": 90, "b": 60}, hovermode="closest",
        modebar={"bgcolor": "rgba(0,0,0,0)"},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1 + 0.13 / lines},
    )  # fmt: skip
    return figure, [{"row": i // columns + 1, "col": i % columns + 1} for i in range(len(titles))]


def faint(colour: str) -> str:
    """A colour of ``PALETTE`` for the area of a band."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"


def log_axis(values: Iterable[float]) -> dict[str, object]:
    """Settings of a logarithmic axis for these values: ticks at 1, 2 and 5, over three decades at 1 alone.

    Plotly's own ticks between decades say 5 where they mean 0.5.
    """
    known = [value for value in values if value > 0 and math.isfinite(value)]
    if not known:
        return {"type": "log"}
    low, high = min(known), max(known)
    steps = (1, 2, 5) if high < 1000 * low else (1,)
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    ticks = [tick for tick in ticks if low / 2 <= tick <= 2 * high]
    return {"type": "log", "tickvals": ticks, "ticktext": [_tick(tick) for tick in ticks]}


def _tick(value: float) -> str:
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"
