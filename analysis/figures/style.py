"""Colours, markers and panels that all figures of a study share.

Each backbone has one colour and marker in all figures: those of ``FAMILIES`` have the same in every study;
further backbones of a study, in alphabetical order, get the colours of ``PALETTE`` that are not in use. Arms
with the same backbone share its colour and differ in the dash of their lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from archbench.experiments.runtime.console import count

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999999", "#C9B800")
"""Okabe and Ito's colour-blind safe colours. Grey replaces black, which is invisible on a dark page; yellow
is darkened for a white page."""

FAMILIES = ("decoder", "mamba", "s4", "moe", "masked_diffusion", "encoder", "encoder_decoder", "hybrid")
"""Backbones with the colour of ``PALETTE`` and the marker of ``SYMBOLS`` at the same index."""

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon")
DASHES = ("solid", "dash", "dot", "dashdot")
REFERENCE_COLOUR = "#8A8A8A"

PANEL_HEIGHT = 400
MOST_PANELS = 8
"""Maximum number of panels of a figure with a panel for each task; the tables have all tasks."""


def palette_indices(backbones: list[str]) -> dict[str, int]:
    """Return the index in ``PALETTE`` and ``SYMBOLS`` of each backbone of a study."""
    fixed = {name: FAMILIES.index(name) for name in backbones if name in FAMILIES}
    free = [i for i in range(len(PALETTE)) if i not in fixed.values()] or list(range(len(PALETTE)))
    remaining = sorted(name for name in backbones if name not in fixed)
    return fixed | {name: free[i % len(free)] for i, name in enumerate(remaining)}


def styles(frame: pd.DataFrame) -> dict[str, dict[str, str]]:
    """Return colour, marker symbol and dash of each arm."""
    by_model, palette_index = {}, palette_indices([str(name) for name in frame["backbone"].unique()])
    for backbone, runs in frame.groupby("backbone"):
        index = palette_index[str(backbone)]
        for rank, model in enumerate(sorted(runs["arm"].unique())):
            by_model[str(model)] = {
                "color": PALETTE[index],
                "symbol": SYMBOLS[index],
                "dash": DASHES[rank % len(DASHES)],
            }
    return by_model


def make_panels(
    titles: list[str], columns: int = 2, *, shared: bool = False
) -> tuple[go.Figure, list[dict[str, int]]]:
    """Return a figure with a panel for each title, and row and column of each panel.

    Args:
        titles: of the panels, by rows.
        columns: maximum number of panels of a row.
        shared: True if the panels of a column have one horizontal axis, and those of a row one vertical axis.
    """
    columns = min(columns, len(titles))
    lines = math.ceil(len(titles) / columns)
    # The last row may have fewer panels: an axis without a panel takes room on narrow pages.
    counts = [min(columns, len(titles) - columns * line) for line in range(lines)]
    figure = make_subplots(
        specs=[[{}] * count + [None] * (columns - count) for count in counts],
        rows=lines, cols=columns, subplot_titles=titles, shared_xaxes=shared, shared_yaxes=shared,
        horizontal_spacing=0.36 / max(2, columns), vertical_spacing=0.36 / lines,
    )  # fmt: skip
    # Transparent backgrounds: the page sets colours, because only it knows whether it is light or dark.
    figure.update_layout(
        template="none", height=PANEL_HEIGHT * lines,
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 70, "r": 20, "t": 90, "b": 60}, hovermode="closest",
        modebar={"bgcolor": "rgba(0,0,0,0)"},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1 + 0.13 / lines},
    )  # fmt: skip
    return figure, [{"row": i // columns + 1, "col": i % columns + 1} for i in range(len(titles))]


def faint(colour: str, opacity: float = 0.15) -> str:
    """Return a transparent version of a colour of ``PALETTE``, for areas such as bands."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def log_axis(values: Iterable[float], label: Callable[[float], str] = count) -> dict[str, object]:
    """Return settings of a logarithmic axis: ticks at 1, 2 and 5, or only at 1 over three decades or more.

    Plotly's default ticks between decades are labelled 5 instead of 0.5.
    """
    positive = [value for value in values if value > 0 and math.isfinite(value)]
    if not positive:
        return {"type": "log"}
    low, high = min(positive), max(positive)
    steps = (1, 2, 5) if high < 1000 * low else (1,)
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    ticks = [tick for tick in ticks if low / 2 <= tick <= 2 * high]
    return {"type": "log", "tickvals": ticks, "ticktext": [label(tick) for tick in ticks]}
