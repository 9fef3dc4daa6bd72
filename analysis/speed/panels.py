"""Further speed figures: memory against length, infilling against denoising steps, largest batches."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go

from archbench.analysis.figures.style import (
    MOST_PANELS,
    PALETTE,
    SYMBOLS,
    log_axis,
    make_panels,
    palette_indices,
)
from archbench.analysis.speed.rows import extremes, model_memory, with_groups
from archbench.analysis.stats.grid import Grid
from archbench.analysis.tables.format import si, size

MEBIBYTE = 2.0**20


def memory_curves(speed: pd.DataFrame) -> go.Figure | None:
    """Draw peak memory of the model against context, a panel for each mode and group of rows."""
    rows = extremes(speed)
    rows = rows.assign(mebibytes=model_memory(rows) / MEBIBYTE).dropna(subset="mebibytes")
    rows = rows.assign(hover=[f"{value:,.4g} MiB" for value in rows["mebibytes"]])
    return _curves(rows, ["mode", "group"], ("context", "context, tokens"), ("mebibytes", "peak memory, MiB"))


def sampling_curves(speed: pd.DataFrame) -> go.Figure | None:
    """Draw committed tokens per second against denoising steps, a panel for each length and batch size."""
    rows = with_groups(speed)
    rows = rows[rows["mode"] == "sample"]
    lengths = [f"{context:,} tokens" for context in rows["context"]]
    hover = [f"{si(row.tokens_per_second)} tokens/s, {row.passes:,.0f} passes" for row in rows.itertuples()]
    rows = rows.assign(words=lengths, hover=hover)
    across, up = ("steps", "denoising steps"), ("tokens_per_second", "committed tokens per second")
    return _curves(rows, ["words", "group"], across, up)


def largest_curves(speed: pd.DataFrame) -> go.Figure | None:
    """Draw tokens per second at the largest batch against context, a panel for each mode and memory limit."""
    rows = _largest(speed)
    hover = [f"{si(row.tokens_per_second)} tokens/s, {row.batch_size:,} at once" for row in rows.itertuples()]
    rows = rows.assign(hover=hover)
    across, up = ("context", "context, tokens"), ("tokens_per_second", "tokens per second")
    return _curves(rows, ["mode", "group"], across, up)


def largest_grid(speed: pd.DataFrame) -> Grid:
    """Return as text the largest batch that fits, and the smallest batch that did not."""
    rows = _largest(speed)
    cells = [
        [
            str(row.backbone), f"{row.mode}, {row.group}", f"{row.context:,}", f"{row.batch_size:,}",
            "-" if pd.isna(row.batch_too_large) else f"{row.batch_too_large:,.0f}",
            si(row.tokens_per_second), size(memory),
        ]
        for row, memory in zip(rows.itertuples(), model_memory(rows), strict=True)
    ]  # fmt: skip
    head = ["backbone", "what", "context", "largest batch", "too large", "tokens/s", "peak memory"]
    return Grid(head=head, rows=cells)


def _largest(speed: pd.DataFrame) -> pd.DataFrame:
    rows = with_groups(speed)
    return rows[rows["batch_choice"] == "largest"]


def _curves(
    rows: pd.DataFrame, by: list[str], across: tuple[str, str], up: tuple[str, str]
) -> go.Figure | None:
    """Draw column ``up`` against ``across`` (column and title), a panel for each group; None without rows."""
    groups = list(rows.groupby(by, sort=False))[:MOST_PANELS]
    if not groups:
        return None
    figure, cells = make_panels([", ".join(key) for key, _ in groups])
    palette_index, in_legend = palette_indices([str(name) for name in rows["backbone"].unique()]), set[str]()
    for (_, panel_rows), cell in zip(groups, cells, strict=True):
        for backbone, line_rows in panel_rows.sort_values(across[0]).groupby("backbone", sort=True):
            index = palette_index[str(backbone)]
            line = go.Scatter(
                x=line_rows[across[0]].tolist(), y=line_rows[up[0]].tolist(), mode="lines+markers",
                name=backbone, legendgroup=backbone, line={"color": PALETTE[index]},
                marker={"symbol": SYMBOLS[index]}, customdata=line_rows["hover"].tolist(),
                hovertemplate=f"<b>{backbone}</b> at %{{x}}: %{{customdata}}<extra></extra>",
                showlegend=backbone not in in_legend,
            )  # fmt: skip
            figure.add_trace(line, **cell)
            in_legend.add(str(backbone))
        values = sorted(int(value) for value in panel_rows[across[0]].unique())
        figure.update_xaxes(
            title_text=across[1], type="log", tickvals=values, ticktext=[f"{value:,}" for value in values],
            **cell,
        )  # fmt: skip
        heights = [value for value in panel_rows[up[0]] if math.isfinite(value)]
        figure.update_yaxes(title_text=up[1], **log_axis(heights), **cell)
    return figure
