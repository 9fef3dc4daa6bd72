"""The report's figures for papers: Plotly figures redrawn by Matplotlib, as SVG, PDF or PNG, in one style.

Every figure of the report consists of panels with lines and markers or with a heat map; only these parts of
Plotly are supported.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import plotly.graph_objects as go
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from archbench.analysis.figures.files import figure_bytes
from archbench.analysis.figures.style import MATPLOTLIB_MARKERS, SYMBOLS

SIDES = {"left": "right", "right": "left"}
"""Alignment of a text in Matplotlib, by the side of the point on which Plotly puts it."""
MARKERS = dict(zip(SYMBOLS, MATPLOTLIB_MARKERS, strict=True)) | {"line-ns": "|"}
LINES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
INCHES = (4.6, 3.4)
"""Width and height of one panel."""


def printed(figure: go.Figure, kind: str) -> bytes:
    """Return a figure as the content of a file; the same figure always gives the same SVG."""
    drawn, panels = _panels(figure)
    for trace in figure.data:
        if trace.visible is not False and trace.x is not None and len(trace.x):
            draw = _draw_map if trace.type == "heatmap" else _draw
            draw(panels[str(trace.xaxis or "x")], trace)
    handles: dict[str, Artist] = {}
    for panel in panels.values():
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        columns = min(len(handles), 2 if len(panels) == 1 else 6)
        drawn.legend(
            handles.values(), handles.keys(), loc="outside upper center", ncols=columns, frameon=False
        )
    return figure_bytes(drawn, kind)


def _panels(figure: go.Figure) -> tuple[Figure, dict[str, Axes]]:
    """Return an empty Matplotlib figure, and its panels by the name of Plotly's horizontal axis."""
    names = sorted(
        (k for k in figure.layout if re.fullmatch(r"xaxis\d*", k)), key=lambda name: int(name[5:] or 1)
    )
    columns = min(2, len(names))
    lines = -(-len(names) // columns)
    drawn = Figure(
        figsize=(INCHES[0] * columns, INCHES[1] * lines + 0.4), layout="constrained", facecolor="white"
    )
    titles = [a.text for a in figure.layout.annotations]
    panels = {}
    for index, name in enumerate(names):
        panel = drawn.add_subplot(lines, columns, index + 1)
        across, up = figure.layout[name], figure.layout[name.replace("x", "y", 1)]
        panel.set_xlabel(across.title.text or "")
        panel.set_ylabel(up.title.text or "")
        panel.set_xscale("log" if across.type == "log" else "linear")
        panel.set_yscale("log" if up.type == "log" else "linear")
        for axis, plotly_axis in ((panel.xaxis, across), (panel.yaxis, up)):
            if plotly_axis.tickvals is not None:
                axis.set_ticks(plotly_axis.tickvals, plotly_axis.ticktext)
                axis.set_ticks([], minor=True)
        if up.autorange == "reversed":
            panel.invert_yaxis()
        panel.set_title(titles[index] if index < len(titles) else "", fontsize=10)
        panel.grid(color="#E4E4E4", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
        panels[name.replace("axis", "")] = panel
    return drawn, panels


def _draw(panel: Any, trace: go.Scatter) -> None:
    """Draw one trace: a line, markers, error bars, or the area down to the previous trace."""
    x = [v.replace("<br>", "\n") if isinstance(v, str) else v for v in trace.x]
    y = [v.replace("<br>", "\n") if isinstance(v, str) else v for v in trace.y]
    mode, marker = trace.mode or "lines", trace.marker
    colour = trace.line.color or marker.color
    if trace.line.width == 0:  # an edge of a band; its second edge fills up to the first
        lower_edge = getattr(panel, "band_edge", None)
        if trace.fill == "tonexty" and lower_edge is not None:
            red, green, blue = (int(v) / 255 for v in re.findall(r"\d+", str(trace.fillcolor))[:3])
            panel.fill_between(x, lower_edge, y, color=(red, green, blue), alpha=0.15, linewidth=0)
        panel.band_edge = y
        return
    symbol = str(marker.symbol or "circle")
    label = trace.name if trace.showlegend is not False else "_nolegend_"
    hollow = symbol.endswith("-open")
    sizes = marker.size if marker.size is not None else 6
    size = max(sizes) if isinstance(sizes, tuple | list) else sizes
    # The interval of a fraction of 1 ends below 1, and Matplotlib rejects negative lengths.
    bars = {
        key: np.array([bar.array if bar.arrayminus is None else bar.arrayminus, bar.array], float).clip(0)
        for key, bar in (("xerr", trace.error_x), ("yerr", trace.error_y))
        if bar.array is not None
    }
    panel.errorbar(
        x, y, label=label, color=colour, alpha=trace.opacity or 1.0, capsize=2, **bars,
        linestyle=LINES[trace.line.dash or "solid"] if "lines" in mode else "none",
        linewidth=(trace.line.width or 1.6) * 0.8,
        marker=MARKERS[symbol.removesuffix("-open")] if "markers" in mode else "none",
        markersize=size * 0.6, markerfacecolor="none" if hollow else colour,
    )  # fmt: skip
    if "text" in mode:
        up = -1 if str(trace.textposition).startswith("bottom") else 1
        side = SIDES.get(str(trace.textposition).rpartition(" ")[2], "center")
        for across, height, text in zip(x, y, trace.text, strict=True):
            panel.annotate(
                text, (across, height), xytext=(0, 6 * up), textcoords="offset points", fontsize=7,
                ha=side, va="bottom" if up > 0 else "top",
            )  # fmt: skip


def _draw_map(panel: Any, trace: go.Heatmap) -> None:
    """Draw a heat map with the value in each cell."""
    field = np.array(trace.z, dtype=float)
    panel.pcolormesh(field, cmap="cividis", vmin=trace.zmin, vmax=trace.zmax, edgecolors="white")
    panel.grid(False)
    for axis, names in ((panel.xaxis, trace.x), (panel.yaxis, trace.y)):
        axis.set_ticks([index + 0.5 for index in range(len(names))], names)
    middle = (trace.zmin + trace.zmax) / 2
    for (row, column), value in np.ndenumerate(field):
        if np.isfinite(value):
            colour = "white" if value < middle else "black"
            panel.text(column + 0.5, row + 0.5, f"{value:.2f}", color=colour, ha="center", va="center")
