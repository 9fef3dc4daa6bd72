"""Matplotlib figures of ``analysis.experts``, each with a panel for each layer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from archbench.analysis.figures.style import PALETTE

COLUMNS = 4
"""Panels in a row."""
WRITTEN_EXPERTS = 16
"""Maximum number of experts for which the cells contain their values."""
RANGE = 2.0
"""Limit of the colour scale: 2^2 times chance, and a quarter of it."""


def training_figure(history: pd.DataFrame, load: pd.DataFrame) -> Figure:
    """Draw the load of each expert (top) and router saturation (bottom) by tokens, a column per layer."""
    layers = list(history["layer"].unique())
    figure = Figure(figsize=(1 + 3.4 * len(layers), 6.0), facecolor="white", layout="constrained")
    panels = figure.subplots(2, len(layers), sharex=True, sharey="row", squeeze=False)
    for column, layer in enumerate(layers):
        above, below = panels[0][column], panels[1][column]
        layer_load = load[load["layer"] == layer]
        for expert, points in layer_load.groupby("expert"):
            colour = PALETTE[int(expert) % len(PALETTE)]
            above.plot(points["tokens"], points["load"], color=colour, label=str(expert))
        above.axhline(1 / layer_load["expert"].nunique(), color="#8A8A8A", linestyle="--")
        recordings = history[history["layer"] == layer]
        below.plot(recordings["tokens"], recordings["saturation"], color=PALETTE[0], marker="o", markersize=3)
        below.plot(recordings["tokens"], recordings["chance"], color="#8A8A8A", linestyle="--")
        above.set_title(str(layer), fontsize=10)
        below.set_xlabel("training tokens")
        for panel in (above, below):
            panel.grid(color="#E4E4E4", linewidth=0.6)
            panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("load, share of visits\n(dashed: even)")
    panels[1][0].set_ylabel("router saturation\n(dashed: by chance)")
    panels[1][0].set_ylim(0, 1.05)
    if load["expert"].nunique() <= len(PALETTE):
        lines, names = panels[0][0].get_legend_handles_labels()
        figure.legend(lines, names, title="expert", loc="outside right upper", frameon=False)
    return figure


def share_figure(frame: pd.DataFrame, group: str) -> Figure:
    """Draw the fraction of each group (rows) by expert (columns); red: more than by chance, blue: less."""
    layers = list(frame["layer"].unique())
    groups = list(frame[group].unique())
    figure, panels = _panels(layers, len(groups))
    image = None
    for layer, panel in zip(layers, panels, strict=True):
        rows = frame[frame["layer"] == layer]
        share_GX = rows.pivot(index=group, columns="expert", values="share").reindex(groups).to_numpy()
        ratio_GX = np.log2(np.maximum(share_GX / rows["chance"].iloc[0], 2**-RANGE))
        image = panel.imshow(ratio_GX, cmap="RdBu_r", vmin=-RANGE, vmax=RANGE, aspect="auto")
        _write(panel, share_GX, np.abs(ratio_GX) > 0.6 * RANGE)
        panel.set_yticks(range(len(groups)), groups, fontsize=8)
        panel.set_title(f"{layer} (by chance {rows['chance'].iloc[0]:.2f})", fontsize=9)
    _bar(figure, image, panels, "share of the group's tokens over chance, log2")
    return figure


def coactivation_figure(frame: pd.DataFrame) -> Figure:
    """Draw the fraction of an expert's tokens (rows) that also chose another expert (columns)."""
    layers = list(frame["layer"].unique())
    figure, panels = _panels(layers, int(frame["expert"].max()) + 1)
    image = None
    for layer, panel in zip(layers, panels, strict=True):
        rows = frame[frame["layer"] == layer]
        share_XX = rows.pivot(index="expert", columns="other", values="share").to_numpy()
        image = panel.imshow(share_XX, cmap="Blues", vmin=0, vmax=max(1e-9, float(frame["share"].max())))
        _write(panel, share_XX, share_XX > 0.6 * frame["share"].max())
        panel.set_yticks(range(len(share_XX)))
        panel.set_ylabel("tokens of expert", fontsize=8)
        panel.set_title(f"{layer} (by chance {rows['chance'].iloc[0]:.2f})", fontsize=9)
    _bar(figure, image, panels, "share that chose the other too")
    return figure


def _panels(layers: list[str], height: int) -> tuple[Figure, list[Any]]:
    columns = min(COLUMNS, len(layers))
    lines = math.ceil(len(layers) / columns)
    size = (2.0 + 3.2 * columns, lines * (1.4 + 0.28 * min(height, WRITTEN_EXPERTS)))
    figure = Figure(figsize=size, facecolor="white", layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for spare in panels[len(layers) :]:
        spare.remove()
    for panel in panels[: len(layers)]:
        panel.set_xlabel("expert", fontsize=8)
        panel.tick_params(labelsize=8, length=0)
    return figure, panels[: len(layers)]


def _write(panel: Any, values: np.ndarray, strong: np.ndarray) -> None:
    """Write the values into the cells, in white if the background is ``strong``."""
    if values.shape[1] > WRITTEN_EXPERTS:
        return
    panel.set_xticks(range(values.shape[1]))
    for (y, x), value in np.ndenumerate(values):
        if np.isfinite(value):
            colour = "white" if strong[y, x] else "black"
            text = f"{value:.2f}".removeprefix("0")
            panel.text(x, y, text, ha="center", va="center", fontsize=6, color=colour)


def _bar(figure: Figure, image: Any, panels: list[Any], label: str) -> None:
    figure.colorbar(image, ax=panels, label=label, shrink=0.8)
