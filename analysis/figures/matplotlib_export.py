"""Figures as files: Plotly figures drawn by Matplotlib as SVG, PDF or PNG.

Plotly itself needs a browser to write such files. Only this module imports Matplotlib. It supports the
parts of Plotly that the figures of this repository consist of: panels with lines, markers, texts, error
bars, bands, bars and heat maps; shapes; annotations. If ``autosize`` is False, axes are drawn where their
domains are. Otherwise domains only state the grid of the panels, which are as large as their labels permit.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import matplotlib
import numpy as np
import plotly.graph_objects as go
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Transform, blended_transform_factory

from archbench.analysis.figures.style import PANEL_HEIGHT, SYMBOLS

FILE_FORMATS = ("svg", "pdf", "png")
"""Formats of the figures for papers."""
DATE_KEYS = {"svg": "Date", "pdf": "CreationDate"}
"""Metadata that would make two files of one figure differ."""
SIDES: dict[str, Literal["left", "right"]] = {"left": "right", "right": "left"}
"""Alignment of a text in Matplotlib, by the side of the point on which Plotly puts it."""
MARKERS = dict(zip(SYMBOLS, ("o", "s", "D", "^", "P", "X", "*", "p"), strict=True)) | {"line-ns": "|"}
LINES: dict[str, Any] = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
INCHES = (4.6, 3.4)
"""Width and height of one panel of a figure without a width."""
PIXELS = 100
"""Pixels of an inch, for figures with a width."""
POINTS = 72 / PIXELS
"""Points of a pixel."""
FONT_SIZE = 10.0
GRID_COLOUR = "#E4E4E4"
SAMPLE, LETTER = 0.67, 0.085
"""Inches of a line of a legend without its text, and of a letter."""
LAYERS = {"below": 0.0, "between": 0.6}
"""Where shapes are drawn: below the grid, between the grid and the lines; else above the lines."""
VERTICAL = {"bottom": "bottom", "middle": "center", "top": "top"}
"""Alignment of an annotation, by the part of it that Plotly puts at its place."""


def printed(figure: go.Figure, kind: str, dpi: int = 160) -> bytes:
    """Return a figure as the content of a file; the same figure always gives the same SVG."""
    drawn, panels = _panels(figure)
    draw = {"scatter": _draw_line, "heatmap": _draw_map, "bar": _draw_bars}
    _draw_bands(panels, _traces(figure))
    for trace in _traces(figure):
        draw[trace.type](panels[trace.xaxis or "x"], trace)
    for shape in figure.layout.shapes:
        _draw_shape(panels, shape)
    for annotation in figure.layout.annotations:
        _write_annotation(figure, drawn, panels, annotation)
    _add_legend(figure, drawn, list(panels.values()))
    buffer = io.BytesIO()
    metadata = {DATE_KEYS[kind]: None} if kind in DATE_KEYS else {}
    with matplotlib.rc_context({"svg.hashsalt": "archbench", "svg.fonttype": "none", "pdf.fonttype": 42}):
        drawn.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
    return buffer.getvalue()


def _traces(figure: go.Figure) -> list[Any]:
    """Return the traces that are shown. A trace without points still claims its panel."""
    return [t for t in figure.data if t.visible is not False and (t.type == "heatmap" or t.x is not None)]


def _panels(figure: go.Figure) -> tuple[Figure, dict[str, Axes]]:
    """Return an empty Matplotlib figure, and its panels by the name of Plotly's horizontal axis."""
    layout = figure.layout
    names = sorted({trace.xaxis or "x" for trace in _traces(figure)}, key=lambda name: int(name[1:] or 1))
    axes = {name: (layout[f"xaxis{name[1:]}"], layout[f"yaxis{name[1:]}"]) for name in names}
    boxes = {name: [axis.domain or (0, 1) for axis in pair] for name, pair in axes.items()}
    lefts = sorted({across[0] for across, _ in boxes.values()})
    bottoms = sorted({up[0] for _, up in boxes.values()}, reverse=True)
    drawn = Figure(figsize=_inches(layout, len(lefts), len(bottoms)), facecolor="white")
    drawn.set_layout_engine("none" if layout.autosize is False else "constrained")
    grid = drawn.add_gridspec(len(bottoms), len(lefts))
    panels: dict[str, Axes] = {}
    for name, (across, up) in axes.items():
        (left, right), (bottom, top) = boxes[name]
        shared = {
            "sharex": panels.get(across.matches or ""),
            "sharey": panels.get((up.matches or "").replace("y", "x")),
        }
        if layout.autosize is False:
            panel = drawn.add_axes((left, bottom, right - left, top - bottom), facecolor="none")
        else:
            panel = drawn.add_subplot(grid[bottoms.index(bottom), lefts.index(left)], **shared)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
        _set_axis(panel, "x", across)
        _set_axis(panel, "y", up)
        panels[name] = panel
    return drawn, panels


def _inches(layout: go.Layout, columns: int, lines: int) -> tuple[float, float]:
    if layout.width is not None:
        return layout.width / PIXELS, layout.height / PIXELS
    return INCHES[0] * columns, INCHES[1] * (layout.height or PANEL_HEIGHT * lines) / PANEL_HEIGHT + 0.4


def _set_axis(panel: Axes, which: Literal["x", "y"], axis: Any) -> None:
    """Set scale, limits, ticks and label of an axis."""
    of_panel = panel.xaxis if which == "x" else panel.yaxis
    getattr(panel, f"set_{which}scale")("log" if axis.type == "log" else "linear")
    if axis.range is not None:
        ends = [10.0**end for end in axis.range] if axis.type == "log" else axis.range
        getattr(panel, f"set_{which}lim")(*ends)
    if axis.autorange == "reversed":
        of_panel.set_inverted(True)
    if axis.tickvals is not None:
        of_panel.set_ticks(axis.tickvals, [_text(text) for text in axis.ticktext or axis.tickvals])
        of_panel.set_ticks([], minor=True)
    elif axis.nticks:
        of_panel.set_major_locator(MaxNLocator(nbins=axis.nticks - 1))
    of_panel.set_label_text(_text(axis.title.text or ""), **_font(axis.title.font))
    _set_look(panel, which, axis)


def _set_look(panel: Axes, which: Literal["x", "y"], axis: Any) -> None:
    """Set lines and tick labels of an axis."""
    of_panel, side = (panel.xaxis, "bottom") if which == "x" else (panel.yaxis, "left")
    labels = {f"label{key}": value for key, value in _font(axis.tickfont).items()}
    panel.tick_params(axis=which, **labels)
    if axis.ticks == "":
        panel.tick_params(axis=which, length=0)
    if axis.side == "top":
        panel.tick_params(axis="x", labeltop=True, labelbottom=False)
    if axis.showticklabels is False:
        panel.tick_params(axis=which, **{f"label{side}": False})
    if axis.showgrid is not False:
        of_panel.grid(color=GRID_COLOUR, linewidth=0.6)
    panel.spines[side].set_visible(axis.showline is not False and axis.visible is not False)
    panel.spines[side].set_color(axis.linecolor or "black")
    of_panel.set_visible(axis.visible is not False)


def _font(font: Any) -> dict[str, Any]:
    """Return the given size and colour of a font."""
    size = {} if font.size is None else {"size": font.size * POINTS}
    return size | ({} if font.color is None else {"color": font.color})


def _text(text: object) -> str:
    """Return a text of Plotly without markup."""
    return re.sub("</?b>", "", str(text).replace("<br>", "\n"))


def _values(values: Sequence[Any]) -> list[Any]:
    return [_text(value) if isinstance(value, str) else value for value in values]


def _rgba(colour: str) -> tuple[float, float, float, float]:
    """Return a colour of Plotly: ``rgb(...)``, ``rgba(...)``, or a name or hexadecimal digits."""
    if not colour.startswith("rgb"):
        return to_rgba(colour)
    red, green, blue, *alpha = (float(part) for part in re.findall(r"[\d.]+", colour))
    return red / 255, green / 255, blue / 255, alpha[0] if alpha else 1.0


def _draw_bands(panels: dict[str, Axes], traces: list[Any]) -> None:
    """Fill the areas between lines that follow each other."""
    for edge, trace in pairwise(traces):
        if trace.type == "scatter" and trace.fill == "tonexty":
            colour = _rgba(trace.fillcolor)
            panels[trace.xaxis or "x"].fill_between(
                _values(trace.x), edge.y, trace.y, color=colour, linewidth=0
            )


def _draw_line(panel: Axes, trace: go.Scatter) -> None:
    """Draw a line, markers, error bars and texts."""
    x, y, marker = _values(trace.x), _values(trace.y), trace.marker
    if not x or trace.line.width == 0:  # the edge of a band
        return
    mode, symbol, sizes = trace.mode or "lines", marker.symbol or "circle", marker.size or 6
    line_colour = trace.line.color or marker.line.color or marker.color
    marker_colour = marker.color or line_colour
    panel.errorbar(
        x, y, alpha=trace.opacity or 1.0, color=line_colour, **_error_bars(trace, line_colour),
        label=trace.name if trace.showlegend is not False else "_nolegend_",
        linestyle=LINES[trace.line.dash or "solid"] if "lines" in mode else "none",
        drawstyle="steps-post" if trace.line.shape == "hv" else "default",
        linewidth=(trace.line.width or 1.6) * 0.8,
        marker=MARKERS[symbol.removesuffix("-open")] if "markers" in mode else "none",
        markersize=0.6 * (max(sizes) if isinstance(sizes, tuple | list) else sizes),
        markerfacecolor="none" if symbol.endswith("-open") else marker_colour,
        markeredgecolor=marker.line.color or marker_colour,
        markeredgewidth=None if marker.line.width is None else 0.8 * marker.line.width,
    )  # fmt: skip
    if "text" in mode:
        _write_texts(panel, x, y, trace)


def _error_bars(trace: go.Scatter, line_colour: str) -> dict[str, Any]:
    """Return the error bars of a line, as arguments of Matplotlib."""
    bars: dict[str, Any] = {"capsize": 2}
    for key, bar in (("xerr", trace.error_x), ("yerr", trace.error_y)):
        if bar.array is not None:
            lengths = [bar.array if bar.arrayminus is None else bar.arrayminus, bar.array]
            # The interval of a fraction of 1 ends below 1, and Matplotlib rejects negative lengths.
            bars |= {key: np.array(lengths, float).clip(0), "ecolor": bar.color or line_colour}
            bars |= {} if bar.thickness is None else {"elinewidth": 0.8 * bar.thickness}
            bars |= {} if bar.width is None else {"capsize": bar.width * POINTS}
    return bars


def _write_texts(panel: Axes, x: list[Any], y: list[Any], trace: go.Scatter) -> None:
    up = -1 if str(trace.textposition).startswith("bottom") else 1
    side = SIDES.get(str(trace.textposition).rpartition(" ")[2], "center")
    for across, height, text in zip(x, y, trace.text, strict=True):
        panel.annotate(
            text, (across, height), xytext=(0, 6 * up), textcoords="offset points",
            ha=side, va="bottom" if up > 0 else "top", **{"size": 7, **_font(trace.textfont)},
        )  # fmt: skip


def _draw_bars(panel: Axes, trace: go.Bar) -> None:
    """Draw horizontal bars, from their base."""
    panel.barh(_values(trace.y), trace.x, left=trace.base, color=_rgba(trace.marker.color), label=trace.name)


def _draw_map(panel: Axes, trace: go.Heatmap) -> None:
    """Draw a heat map with a text in each cell, and its scale."""
    field = np.array(trace.z, dtype=float)
    lines, columns = (np.arange(size + 1) - 0.5 for size in field.shape)
    scale = LinearSegmentedColormap.from_list("", [(at, _rgba(colour)) for at, colour in trace.colorscale])
    norm = Normalize(trace.zmin, trace.zmax)
    edges = "white" if trace.xgap else "none"
    mesh = panel.pcolormesh(
        columns, lines, np.ma.masked_invalid(field), cmap=scale, norm=norm, edgecolors=edges
    )
    panel.grid(False)
    for axis, names in ((panel.xaxis, trace.x), (panel.yaxis, trace.y)):
        if names is not None:
            axis.set_ticks(range(len(names)), [_text(name) for name in names])
    for (row, column), value in np.ndenumerate(field):
        if trace.texttemplate and np.isfinite(value):
            bright = np.dot(scale(norm(value))[:3], (0.299, 0.587, 0.114)) > 0.5
            panel.text(
                column, row, _cell_text(trace, row, column), ha="center", va="center",
                **{"size": FONT_SIZE, "color": "black" if bright else "white", **_font(trace.textfont)},
            )  # fmt: skip
    if trace.showscale is not False:
        drawn = panel.figure
        drawn.colorbar(mesh, ax=drawn.axes, label=trace.colorbar.title.text, shrink=0.8)


def _cell_text(trace: go.Heatmap, row: int, column: int) -> str:
    if trace.text is not None:
        return _text(trace.text[row][column])
    return format(trace.z[row][column], trace.texttemplate.removeprefix("%{z:").removesuffix("}"))


def _transform(panel: Axes, across: str, up: str) -> Transform:
    """Return the coordinates of a panel: values of an axis, or fractions of its length (its domain)."""
    return blended_transform_factory(
        panel.transAxes if across.endswith("domain") else panel.transData,
        panel.transAxes if up.endswith("domain") else panel.transData,
    )


def _draw_shape(panels: dict[str, Axes], shape: Any) -> None:
    """Draw a line or a rectangle."""
    panel = panels[shape.xref.split(" ")[0]]
    look: dict[str, Any] = {"zorder": LAYERS.get(shape.layer, 3.0)}
    look |= {"transform": _transform(panel, shape.xref, shape.yref)}
    if shape.type == "line":
        look |= {"linestyle": LINES[shape.line.dash or "solid"], "linewidth": 0.8 * (shape.line.width or 2)}
        ends = [shape.x0, shape.x1], [shape.y0, shape.y1]
        panel.add_artist(Line2D(*ends, color=shape.line.color, **look))
        return
    corner, size = (shape.x0, shape.y0), (shape.x1 - shape.x0, shape.y1 - shape.y0)
    panel.add_artist(Rectangle(corner, *size, color=_rgba(shape.fillcolor), linewidth=0, **look))


def _write_annotation(figure: go.Figure, drawn: Figure, panels: dict[str, Axes], note: Any) -> None:
    """Write a text: at its place, or as the title of the panel that it is above, or below all panels."""
    look: dict[str, Any] = {
        "ha": note.xanchor, "va": VERTICAL[note.yanchor],
        "weight": "bold" if "<b>" in note.text else "normal",
    } | _font(note.font)  # fmt: skip
    if note.xref != "paper":
        panel = panels[note.xref.split(" ")[0]]
        shift = ((note.xshift or 0) * POINTS, (note.yshift or 0) * POINTS)
        panel.annotate(
            _text(note.text), (note.x, note.y), xycoords=_transform(panel, note.xref, note.yref),
            xytext=shift, textcoords="offset points", **look,
        )  # fmt: skip
        return
    if figure.layout.autosize is False:
        drawn.text(note.x, note.y, _text(note.text), **look)
        return
    for name, panel in panels.items():
        across, up = (figure.layout[f"{which}axis{name[1:]}"].domain for which in "xy")
        if across and abs(sum(across) / 2 - note.x) < 1e-6 and abs(up[1] - note.y) < 1e-6:
            panel.set_title(_text(note.text), fontsize=FONT_SIZE)
            return
    drawn.supxlabel(_text(note.text), **_font(note.font))


def _add_legend(figure: go.Figure, drawn: Figure, panels: list[Axes]) -> None:
    """Add a legend of all panels: above them, or to their right if it is vertical."""
    handles: dict[str, Artist] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    layout = figure.layout
    if not handles or layout.showlegend is False:
        return
    vertical = layout.legend.orientation == "v"
    drawn.legend(
        handles.values(), handles.keys(), frameon=False, title=layout.legend.title.text,
        loc="outside right upper" if vertical else "outside upper center",
        ncols=1 if vertical else _columns(list(handles), drawn.get_figwidth()),
    )  # fmt: skip


def _columns(labels: list[str], width: float) -> int:
    """Return how many columns of a legend fit a width in inches. Matplotlib fills them in turn."""
    for columns in range(len(labels), 1, -1):
        parts = [list(part) for part in np.array_split(labels, columns)]
        if sum(SAMPLE + LETTER * max(map(len, part)) for part in parts) <= width:
            return columns
    return 1
