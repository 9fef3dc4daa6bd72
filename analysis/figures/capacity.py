"""Capacity curves: accuracy over difficulty, and capacity over the bytes of the state."""

from __future__ import annotations

import math
import re

import pandas as pd
import plotly.graph_objects as go

from archbench.analysis.figures.style import (
    PALETTE,
    REFERENCE_COLOUR,
    SYMBOLS,
    faint,
    log_axis,
    make_panels,
    palette_indices,
)
from archbench.analysis.stats.capacity import AT_LEAST, BELOW, LADDER_SCALE, Capacity, capacities

ARROWS = {AT_LEAST: ("↑", "top center"), BELOW: ("↓", "bottom center")}
"""Signs of bounds, and their positions relative to a point."""


def capacity_figures(ladders: pd.DataFrame) -> dict[str, go.Figure]:
    """Return a figure for each ladder of ``analysis.stats.capacity.rungs``, by a name for files.

    A bound of a capacity, or of its interval, is an arrow. One legend names the models of both panels.
    """
    if ladders.empty:
        return {}
    figures = {}
    index = palette_indices(sorted(ladders["model"].unique()))
    for (ladder, scale), group in ladders.groupby(LADDER_SCALE, sort=True):
        title = f"{ladder}, {scale}: largest difficulty at an accuracy of {group['level'].iloc[0]:g}"
        figure, (left, right) = make_panels([title, "capacity by size of the state"])
        _add_accuracies(figure, left, group, index)
        for capacity in capacities(group):
            if capacity.state_bytes > 0:  # else it decodes without a state
                for trace in _capacity(capacity, index[capacity.model]):
                    figure.add_trace(trace, **right)
        states = [capacity.state_bytes for capacity in capacities(group)]
        figure.update_xaxes(title_text="bytes of the decoding state after 2,048 tokens", **right)
        figure.update_xaxes(**_state_axis(states), **right)
        figure.update_yaxes(**_difficulty_axis(group, ", capacity"), **right)
        name = f"{ladder}_{scale}" if ladders["scale"].nunique() > 1 else str(ladder)
        figures[re.sub(r"\W+", "_", name)] = figure
    return figures


def _add_accuracies(
    figure: go.Figure, cell: dict[str, int], group: pd.DataFrame, index: dict[str, int]
) -> None:
    """Draw accuracy over difficulty with bands of 95%, the level, and the best reference line."""
    for model, rows in group.groupby("model", sort=True):
        for trace in _accuracy(str(model), rows.sort_values("difficulty"), index[str(model)]):
            figure.add_trace(trace, **cell)
    references = group.groupby("difficulty")["reference"].max().dropna()
    if len(references):
        line = go.Scatter(
            x=references.index.tolist(), y=references.tolist(), mode="lines", name="best reference line",
            line={"color": REFERENCE_COLOUR, "width": 1.2},
            hovertemplate="best reference line at %{x}: %{y:.4f}<extra></extra>",
        )  # fmt: skip
        figure.add_trace(line, **cell)
    level = {"color": REFERENCE_COLOUR, "dash": "dash", "width": 1.2}
    figure.add_hline(y=float(group["level"].iloc[0]), line=level, **cell)
    figure.update_xaxes(**_difficulty_axis(group), **cell)
    figure.update_yaxes(title_text="test accuracy, mean and 95% interval", range=[-0.02, 1.02], **cell)


def _accuracy(model: str, rows: pd.DataFrame, index: int) -> list[go.Scatter]:
    """Return both edges of the band of a model, and its line."""
    colour, x = PALETTE[index], rows["difficulty"].tolist()
    edge = {
        "x": x, "mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip",
        "name": model, "legendgroup": model,
    }  # fmt: skip
    return [
        go.Scatter(y=rows["low"].tolist(), **edge),
        go.Scatter(y=rows["high"].tolist(), fill="tonexty", fillcolor=faint(colour), **edge),
        go.Scatter(
            x=x, y=rows["score"].tolist(), mode="lines+markers", name=model, legendgroup=model,
            line={"color": colour}, marker={"symbol": SYMBOLS[index], "size": 9},
            hovertemplate=f"<b>{model}</b> at %{{x}}: %{{y:.4f}}<extra></extra>",
        ),
    ]  # fmt: skip


def _capacity(capacity: Capacity, index: int) -> list[go.Scatter]:
    """Return the capacity of a model over its state with its interval, and an arrow for each bound."""
    colour = PALETTE[index]
    ends = [limit for limit in (capacity.low, capacity.high) if limit is not None]
    common = {"name": capacity.model, "legendgroup": capacity.model, "showlegend": False}
    traces = [
        go.Scatter(
            x=[capacity.state_bytes] * len(ends), y=[end.difficulty for end in ends], mode="lines",
            line={"color": colour, "width": 1.3}, hoverinfo="skip", **common,
        ),
        go.Scatter(
            x=[capacity.state_bytes], y=[capacity.limit.difficulty], mode="markers",
            marker={"color": colour, "symbol": SYMBOLS[index], "size": 10},
            hovertemplate=f"<b>{capacity.model}</b>, %{{x:,}} bytes: %{{y:.3g}}<extra></extra>", **common,
        ),
    ]  # fmt: skip
    for limit in (capacity.limit, *ends):
        if limit.bound in ARROWS:
            sign, position = ARROWS[limit.bound]
            traces.append(
                go.Scatter(
                    x=[capacity.state_bytes], y=[limit.difficulty], mode="text", text=[sign],
                    textposition=position, textfont={"color": colour, "size": 16}, hoverinfo="skip", **common,
                )
            )  # fmt: skip
    return traces


def _state_axis(states: list[float]) -> dict[str, object]:
    """Return the logarithmic axis of bytes, with room for arrows and markers at both ends."""
    positive = [value for value in states if value > 0] or [1.0]
    ends = math.log10(min(positive)), math.log10(max(positive))
    margin = 0.25 * ((ends[1] - ends[0]) or 1.0)
    return {**log_axis(positive), "range": [ends[0] - margin, ends[1] + margin]}


def _difficulty_axis(group: pd.DataFrame, quantity: str = "") -> dict[str, object]:
    """Return the logarithmic axis of difficulties."""
    difficulties = sorted(group["difficulty"].unique().tolist())
    low, high = difficulties[0], difficulties[-1]
    margin = 0.12 * math.log10(high / low) if high > low else math.log10(2) / 2
    return {
        "type": "log", "tickvals": difficulties, "ticktext": [f"{value:g}" for value in difficulties],
        "range": [math.log10(low) - margin, math.log10(high) + margin],
        "title_text": f"{group['unit'].iloc[0]}{quantity}",
    }  # fmt: skip
