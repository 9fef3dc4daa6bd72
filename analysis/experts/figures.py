"""Figures of ``analysis.experts``, each with a panel for each layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from archbench.analysis.figures.style import PALETTE, REFERENCE_COLOUR, make_panels

COLUMNS = 4
"""Panels in a row."""
WRITTEN_EXPERTS = 16
"""Maximum number of experts for which the cells contain their values."""
RANGE = 2.0
"""Limit of the colour scale: 2^2 times chance, and a quarter of it."""
SMALL = {"size": 11}


def training_figure(history: pd.DataFrame, load: pd.DataFrame) -> go.Figure:
    """Draw the load of each expert (top) and router saturation (bottom) by tokens, a column per layer."""
    layers = list(history["layer"].unique())
    titles = [str(layer) for layer in layers] + [""] * len(layers)
    figure, cells = make_panels(titles, len(layers), shared=True)
    for column, layer in enumerate(layers):
        above, below = cells[column], cells[column + len(layers)]
        layer_load = load[load["layer"] == layer]
        for trace in _loads(layer_load, legend=column == 0):
            figure.add_trace(trace, **above)
        figure.add_hline(
            y=1 / layer_load["expert"].nunique(), line={"color": REFERENCE_COLOUR, "dash": "dash"}, **above
        )
        for trace in _saturations(history[history["layer"] == layer]):
            figure.add_trace(trace, **below)
        figure.update_xaxes(title_text="training tokens", **below)
    figure.update_yaxes(title_text="load, share of visits<br>(dashed: even)", **cells[0])
    figure.update_yaxes(title_text="router saturation<br>(dashed: by chance)", **cells[len(layers)])
    figure.update_yaxes(range=[0, 1.05], row=2)
    return figure.update_layout(
        width=100 + 340 * len(layers), height=600, showlegend=load["expert"].nunique() <= len(PALETTE),
        legend={"title": {"text": "expert"}, "orientation": "v", "y": 1, "yanchor": "top"},
    )  # fmt: skip


def _loads(load: pd.DataFrame, *, legend: bool) -> Iterator[go.Scatter]:
    """Return the load of each expert of a layer."""
    for expert, points in load.groupby("expert"):
        yield go.Scatter(
            x=points["tokens"].tolist(), y=points["load"].tolist(), mode="lines", name=str(expert),
            line={"color": PALETTE[int(expert) % len(PALETTE)]}, showlegend=legend, legendgroup=str(expert),
        )  # fmt: skip


def _saturations(recordings: pd.DataFrame) -> list[go.Scatter]:
    """Return the saturation of the router of a layer, and its saturation by chance."""
    tokens = recordings["tokens"].tolist()
    return [
        go.Scatter(
            x=tokens, y=recordings["saturation"].tolist(), mode="lines+markers", name="saturation",
            line={"color": PALETTE[0]}, marker={"size": 5}, showlegend=False,
        ),
        go.Scatter(
            x=tokens, y=recordings["chance"].tolist(), mode="lines", name="by chance",
            line={"color": REFERENCE_COLOUR, "dash": "dash"}, showlegend=False,
        ),
    ]  # fmt: skip


def share_figure(frame: pd.DataFrame, group: str) -> go.Figure:
    """Draw the fraction of each group (rows) by expert (columns); red: more than by chance, blue: less."""
    groups = list(frame[group].unique())
    chance = frame.groupby("layer")["chance"].transform("first")
    ratio = np.log2(np.maximum(frame["share"] / chance, 2**-RANGE))
    figure = _maps(frame.assign(ratio=ratio), (group, "expert", "ratio"), groups)
    figure.update_traces(
        colorscale="RdBu_r", zmin=-RANGE, zmax=RANGE,
        colorbar={"title": {"text": "share of the group's tokens over chance, log2", "side": "right"}},
    )  # fmt: skip
    return figure


def coactivation_figure(frame: pd.DataFrame) -> go.Figure:
    """Draw the fraction of an expert's tokens (rows) that also chose another expert (columns)."""
    count = int(frame["expert"].max()) + 1
    figure = _maps(frame, ("expert", "other", "share"), list(range(count)))
    figure.update_traces(
        colorscale="Blues", zmin=0, zmax=max(1e-9, float(frame["share"].max())),
        colorbar={"title": {"text": "share that chose the other too", "side": "right"}},
    )  # fmt: skip
    return figure.update_yaxes(title={"text": "tokens of expert", "font": SMALL})


def _maps(frame: pd.DataFrame, axes: tuple[str, str, str], lines: list[object]) -> go.Figure:
    """Draw a column by two others, a map for each layer with the shares in its cells.

    Args:
        frame: a row for each cell of each layer.
        axes: columns of the vertical axis, of the horizontal axis, and of the colour.
        lines: values of the vertical axis, from the top.
    """
    up, across, colour = axes
    layers = list(frame["layer"].unique())
    titles = [
        f"{layer} (by chance {rows['chance'].iloc[0]:.2f})"
        for layer, rows in frame.groupby("layer", sort=False)
    ]
    figure, cells = make_panels(titles, COLUMNS)
    for (_, rows), cell in zip(frame.groupby("layer", sort=False), cells, strict=True):
        colour_UX, share_UX = (
            rows.pivot(index=up, columns=across, values=name).reindex(lines) for name in (colour, "share")
        )
        names = [str(name) for name in colour_UX.columns]
        is_written = len(names) <= WRITTEN_EXPERTS
        text = [[f"{share:.2f}".removeprefix("0") for share in row] for row in share_UX.to_numpy()]
        trace = go.Heatmap(
            z=colour_UX.to_numpy().tolist(), x=names, y=[str(line) for line in lines], text=text,
            texttemplate="%{text}" if is_written else None, textfont={"size": 8.5},
            showscale=cell == cells[0],
            hovertemplate="%{y}, expert %{x}: %{text}<extra></extra>",
        )  # fmt: skip
        figure.add_trace(trace, **cell)
    figure.update_xaxes(title={"text": "expert", "font": SMALL}, tickfont=SMALL, ticks="")
    figure.update_yaxes(autorange="reversed", tickfont=SMALL, ticks="", type="category")
    columns = min(COLUMNS, len(layers))
    height = 140 + 28 * min(len(lines), WRITTEN_EXPERTS)
    return figure.update_layout(width=200 + 320 * columns, height=-(-len(layers) // columns) * height)
