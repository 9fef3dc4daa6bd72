"""Colours, markers and panels that all figures of a study share.

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

from experiments.runtime.console import count

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999999", "#C9B800")
"""Okabe and Ito's colour-blind safe colours. Grey stands for their black, which a dark page
would swallow; their yellow comes last and darkened, for a white page."""

FAMILIES = ("decoder", "mamba", "s4", "moe", "masked_diffusion", "encoder", "encoder_decoder", "hybrid")
"""Backbones with the colour of ``PALETTE`` and the marker of ``SYMBOLS`` at the same place."""

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon")
MATPLOTLIB_MARKERS = ("o", "s", "D", "^", "P", "X", "*", "p")
"""Matplotlib's names of ``SYMBOLS``, in the same order."""
DASHES = ("solid", "dash", "dot", "dashdot")
REFERENCE_COLOUR = "#8A8A8A"

PANEL_HEIGHT = 400
MOST_PANELS = 8
"""A figure with a panel for each task shows no more of them; the tables have all."""


def places(backbones: list[str]) -> dict[str, int]:
    """Return the index in ``PALETTE`` and ``SYMBOLS`` of each backbone of a study."""
    found = {name: FAMILIES.index(name) for name in backbones if name in FAMILIES}
    free = [i for i in range(len(PALETTE)) if i not in found.values()] or list(range(len(PALETTE)))
    others = sorted(name for name in backbones if name not in found)
    return found | {name: free[i % len(free)] for i, name in enumerate(others)}


def styles(frame: pd.DataFrame) -> dict[str, dict[str, str]]:
    """Return colour, marker symbol and dash of each arm."""
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
    return {"type": "log", "tickvals": ticks, "ticktext": [count(tick) for tick in ticks]}
