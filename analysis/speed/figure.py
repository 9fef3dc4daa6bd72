"""Speed and memory against length, or denoising steps for infilling, as one figure of a mode."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import plotly.graph_objects as go

from archbench.analysis.figures.style import PALETTE, SYMBOLS, log_axis, make_panels, palette_indices
from archbench.analysis.speed.rows import milliseconds, model_memory

WIDTH, HEIGHT = 440, 320
"""Size of a panel in pixels."""


def draw(frame: pd.DataFrame) -> go.Figure:
    """Draw tokens per second, milliseconds with quartiles, and MiB, in a column for each group of rows.

    All rows have one mode. For infilling there is a column for each group and length.
    """
    mode = frame["mode"].iloc[0]
    across, title = ("steps", "denoising steps") if mode == "sample" else ("context", "context, tokens")
    frame = frame.assign(mebibytes=model_memory(frame) / 2**20)
    by = ["order", "group", *["context"] * (mode == "sample")]
    groups = list(frame.groupby(by, sort=True))
    titles = [key[1] + (f", {key[2]:,} tokens" if mode == "sample" else "") for key, _ in groups]
    figure, cells = make_panels([*titles, *[""] * (2 * len(groups))], len(groups), shared=True)
    index, in_legend = palette_indices([str(name) for name in frame["backbone"].unique()]), set[str]()
    for column, (_, group_rows) in enumerate(groups):
        below = cells[column :: len(groups)]
        for backbone, rows in group_rows.groupby("backbone", sort=True):
            legend = backbone not in in_legend
            for trace, cell in zip(_lines(str(backbone), rows, across, index, legend), below, strict=True):
                figure.add_trace(trace, **cell)
            in_legend.add(str(backbone))
        values = sorted(int(value) for value in group_rows[across].unique())
        ticks = {"type": "log", "tickvals": values, "ticktext": [f"{value:,}" for value in values]}
        figure.update_xaxes(**ticks, col=column + 1)
        figure.update_xaxes(title_text=title, **below[-1])
    _set_heights(figure, mode, len(groups))
    return figure.update_layout(width=120 + WIDTH * len(groups), height=40 + 3 * HEIGHT)


def _lines(
    backbone: str, rows: pd.DataFrame, across: str, index: dict[str, int], legend: bool
) -> Iterator[go.Scatter]:
    """Return one backbone's line in each panel of a column."""
    rows = rows.sort_values(across)
    low, middle, high = (
        1000 * rows[f"seconds_{name}"] for name in ("first_quartile", "median", "third_quartile")
    )
    quartiles = {"type": "data", "array": (high - middle).tolist(), "arrayminus": (middle - low).tolist()}
    for row, values in enumerate((rows["tokens_per_second"], middle, rows["mebibytes"])):
        yield go.Scatter(
            x=rows[across].tolist(), y=values.tolist(), mode="lines+markers", name=backbone,
            legendgroup=backbone, showlegend=legend and row == 0, line={"color": PALETTE[index[backbone]]},
            marker={"symbol": SYMBOLS[index[backbone]], "size": 9}, error_y=quartiles if row == 1 else {},
            hovertemplate=f"<b>{backbone}</b> at %{{x}}: %{{y:.4s}}<extra></extra>",
        )  # fmt: skip


def _set_heights(figure: go.Figure, mode: str, columns: int) -> None:
    """Set the vertical axis of each row, logarithmic where a value is positive."""
    speed = "committed tokens per second" if mode == "sample" else "tokens per second"
    for row, title in enumerate((speed, milliseconds(mode), "peak memory of the model, MiB")):
        values = [value for trace in figure.select_traces(row=row + 1) for value in trace.y]
        if any(value > 0 for value in values):
            figure.update_yaxes(**log_axis(values), row=row + 1)
        figure.update_yaxes(title_text=title, row=row + 1, col=1)
