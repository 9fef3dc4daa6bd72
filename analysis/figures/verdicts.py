"""The verdict figure: each model's difference from the baseline of its likelihood type, with 95% intervals.

Each task has a panel with an axis for each likelihood type, because scores of different types are not
comparable. Lengths are in pixels, for the width of a README.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from itertools import zip_longest

import pandas as pd
import plotly.graph_objects as go

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.style import MOST_PANELS, PALETTE, palette_indices
from archbench.analysis.load.scale_order import scale_groups, task_label
from archbench.analysis.stats.arms import likelihood_group
from archbench.analysis.stats.verdicts.verdict import UNDECIDED
from archbench.analysis.tables.columns import mean_text, verdict_text
from archbench.experiments.runtime.console import plural

WIDTH = 850
ROW = 25
"""Height of one model's row. All lengths are in pixels."""
TASK_TITLE = 50
GROUP_TITLE = 30
AXIS = 50
"""Height of the tick labels and the axis label below a group."""
GAP = 12
"""Space below a group without an axis."""
FOOTER = 62
LETTER = 7.5
"""Width of a letter of a model's name."""
LONGEST = {True: 22, False: 52}
"""Characters of a model's name before it is wrapped, with two columns of tasks (True) and with one."""
SCORES, MARGIN = 110, 12
"""Widths of the column of scores, and of the margins."""
INK, SOFT, LINE = "#1B1F24", "#5B6570", "#D5DAE0"

LIKELIHOOD_TITLES = {
    "exact": "exact likelihood",
    "conditional": "conditional likelihood",
    "bound": "bound on the likelihood",
    "pseudo": "pseudo-likelihood",
}
"""Titles of the groups; scores that are not likelihoods have none."""


CAPTION = (
    "Points: mean difference from the baseline over {seeds}; bars: 95% intervals, corrected for their "
    "number.<br>"
    "Filled: better, worse or equivalent; open: undecided. Right: mean score with its 95% interval.<br>"
    "Scores of different likelihood types are not comparable, so each type has an axis and a baseline of "
    "its own: the study's, else its best model."
)


@dataclass(frozen=True, kw_only=True)
class Canvas:
    """A figure of given size, whose texts and axes are placed in pixels from its upper left corner."""

    figure: go.Figure
    height: float

    def write(self, text: str, left: float, top: float, size: float, colour: str = SOFT) -> None:
        """Write a text with its lower left corner at a place."""
        self.figure.add_annotation(
            text=text, xref="paper", yref="paper", x=left / WIDTH, y=1 - top / self.height, xanchor="left",
            yanchor="bottom", align="left", showarrow=False, font={"size": size, "color": colour},
        )  # fmt: skip

    def add_axes(self, left: float, right: float, top: float, bottom: float) -> str:
        """Add a pair of axes; return the end of their names."""
        count = sum(axis.domain is not None for axis in self.figure.select_xaxes())
        axis = str(count + 1) if count else ""
        across = {"domain": [left / WIDTH, right / WIDTH], "anchor": f"y{axis}"}
        up = {"domain": [1 - bottom / self.height, 1 - top / self.height], "anchor": f"x{axis}"}
        self.figure.update_layout({f"xaxis{axis}": across, f"yaxis{axis}": up})
        return axis


def verdict_figure(comparison: Comparison) -> go.Figure | None:
    """Return the figure of a study; None if no model has a score."""
    rows = comparison.arms
    rows = rows[(rows["kind"] == "arm") & (rows["seeds"] > 0)]
    tasks = [task_rows for _, task_rows in scale_groups(rows)][:MOST_PANELS]
    if not tasks:
        return None
    pairs = list(zip_longest(tasks[::2], tasks[1::2]))
    heights = [max(_task_height(task) for task in pair if task is not None) for pair in pairs]
    canvas = Canvas(figure=go.Figure(), height=sum(heights) + FOOTER)
    colours = palette_indices([str(name) for name in comparison.frame["backbone"].unique()])
    width, top = WIDTH if len(tasks) == 1 else WIDTH / 2, 0.0
    for pair, height in zip(pairs, heights, strict=True):
        for column, task_rows in enumerate(pair):
            if task_rows is not None:
                _draw_task(canvas, task_rows, column * width, width, top, colours)
        top += height
    low, high = int(rows["seeds"].min()), int(rows["seeds"].max())
    seeds = plural(low, "seed") if low == high else f"{low} to {high} seeds"
    canvas.write(CAPTION.format(seeds=seeds), MARGIN, canvas.height - 10, 10.5)
    canvas.figure.update_layout(
        template="none", autosize=False, width=WIDTH, height=canvas.height, showlegend=False,
        margin={"l": 0, "r": 0, "t": 0, "b": 0},
    )  # fmt: skip
    return canvas.figure


def _task_height(rows: pd.DataFrame) -> float:
    groups = _groups(rows)
    parts = (GROUP_TITLE * bool(name) + ROW * len(group) + _axis_height(group) for name, group in groups)
    return TASK_TITLE + sum(parts)


def _groups(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the models of one task by likelihood type, with the title of each, in the order of the table."""
    keys = pd.Series([likelihood_group(row) for _, row in rows.iterrows()], index=rows.index)
    return [
        (LIKELIHOOD_TITLES.get(key, "" if key in ("None", "nan") else key), rows[keys == key])
        for key in keys.unique()
    ]


def _axis_height(rows: pd.DataFrame) -> float:
    """Return the height below a group: a single model needs no axis."""
    return AXIS if len(rows) > 1 else GAP


def _draw_task(
    canvas: Canvas, rows: pd.DataFrame, left: float, width: float, top: float, colours: dict[str, int]
) -> None:
    """Draw one task with its upper left corner at ``left`` and ``top``."""
    row, left = rows.iloc[0], left + MARGIN
    metric = str(row["metric"]).replace("_", " ")
    canvas.write(f"<b>{task_label(row['task'], row['scale'])}</b>", left, top + 22, 15, INK)
    canvas.write(f"{metric}, {row['direction']} is better", left, top + 39, 12)
    top += TASK_TITLE
    longest = LONGEST[width < WIDTH]
    names = 15 + LETTER * min(longest, max(len(str(model)) for model in rows["arm"]))
    right = left + width - 2 * MARGIN - SCORES
    for name, group in _groups(rows):
        if name:
            canvas.write(name, left, top + 19, 12)
            top += GROUP_TITLE
        bottom = top + ROW * len(group)
        axis = canvas.add_axes(left + names, right, top, bottom)
        _draw_group(canvas.figure, axis, group, colours, longest)
        top = bottom + _axis_height(group)


def _draw_group(
    figure: go.Figure, axis: str, rows: pd.DataFrame, colours: dict[str, int], longest: int
) -> None:
    """Draw the models of one likelihood type: points, intervals, the zero line, names and scores."""
    for index, (_, row) in enumerate(rows.iterrows()):
        lines = textwrap.wrap(str(row["arm"]), longest)
        _write(figure, axis, "<br>".join(lines), (0, index), -8, 12 if len(lines) == 1 else 8.5, INK)
        _write(figure, axis, mean_text(row), (1, index), MARGIN + SCORES - 11, 11)
    figure.update_layout({f"yaxis{axis}": {"range": [len(rows) - 0.5, -0.5], "visible": False}})
    if len(rows) == 1:
        figure.add_scatter(x=[], y=[], xaxis=f"x{axis}", yaxis=f"y{axis}")
        figure.update_layout({f"xaxis{axis}": {"visible": False}})
        _write(figure, axis, "the only model of its type", (0.5, 0), 0, 11, anchor="center")
        return
    _draw_gains(figure, axis, rows, colours)
    baseline = str(rows["baseline"].iloc[0])
    baseline = baseline if len(baseline) <= longest else "the baseline"
    small = {"size": 11, "color": SOFT}
    title = {"text": f"← worse than {baseline}   better →", "font": small}
    look = {"nticks": 5, "ticks": "", "tickfont": small, "linecolor": LINE, "gridcolor": LINE, "title": title}
    figure.update_layout({f"xaxis{axis}": {**look, "zeroline": False, "showline": True}})


def _draw_gains(figure: go.Figure, axis: str, rows: pd.DataFrame, colours: dict[str, int]) -> None:
    """Draw the zero line, and for each model its gain over the baseline with the interval."""
    gains = rows["gain"].astype(float)
    lows, highs = (rows[end].astype(float).fillna(gains) for end in ("gain_low", "gain_high"))
    ends = [0.0, *lows.dropna(), *highs.dropna()]
    span = (max(ends) - min(ends)) or 1.0
    limits = [min(ends) - 0.08 * span, max(ends) + 0.08 * span]
    figure.update_layout({f"xaxis{axis}": {"range": limits}})
    zero = {"type": "line", "xref": f"x{axis}", "x0": 0, "x1": 0, "line": {"color": INK, "width": 1.3}}
    figure.add_shape(yref=f"y{axis} domain", y0=0, y1=1, layer="between", **zero)
    side = "left" if max(ends) >= -min(ends) else "right"
    for position, (index, row) in enumerate(rows.iterrows()):
        colour = PALETTE[colours[str(row["backbone"])]]
        is_baseline = row["arm"] == row["baseline"]
        if is_baseline or not math.isnan(gains[index]):
            ends_of_row = (lows[index], 0.0 if is_baseline else gains[index], highs[index])
            point = _point(row, position, ends_of_row, colour, is_baseline=is_baseline)
            figure.add_trace(point.update(xaxis=f"x{axis}", yaxis=f"y{axis}"))
        if is_baseline or math.isnan(gains[index]):
            shift = 10 if side == "left" else -10
            _write(figure, axis, verdict_text(row), (0, position), shift, 10.5, anchor=side, xref=f"x{axis}")


def _point(
    row: pd.Series, position: int, ends: tuple[float, float, float], colour: str, *, is_baseline: bool
) -> go.Scatter:
    """Return the mark of a model: a bar for the baseline, else its gain with the interval."""
    low, gain, high = ends
    marker: dict[str, object] = {"symbol": "line-ns", "size": 18, "line": {"color": colour, "width": 5}}
    bar: dict[str, object] = {}
    if not is_baseline:
        fill = colour if row["verdict"] != UNDECIDED else "white"
        marker = {"color": fill, "size": 12, "line": {"color": colour, "width": 2.3}}
        bar = {
            "array": [high - gain],
            "arrayminus": [gain - low],
            "color": colour,
            "thickness": 2.5,
            "width": 4,
        }
    return go.Scatter(
        x=[gain], y=[position], mode="markers", marker=marker, name=str(row["arm"]),
        error_x=bar if low != high else {},
        hovertemplate=f"<b>{row['arm']}</b> %{{x:+.4f}}, {verdict_text(row)}<extra></extra>",
    )  # fmt: skip


def _write(
    figure: go.Figure, axis: str, text: str, place: tuple[float, float], shift: float, size: float,
    colour: str = SOFT, *, anchor: str = "right", xref: str = "",
) -> None:  # fmt: skip
    """Write a text in a row, ``shift`` pixels from a fraction of the axis, or from a value of ``xref``."""
    figure.add_annotation(
        text=text, x=place[0], y=place[1], xref=xref or f"x{axis} domain", yref=f"y{axis}", xshift=shift,
        xanchor=anchor, yanchor="middle", align=anchor, showarrow=False,
        font={"size": size, "color": colour},
    )  # fmt: skip
