"""The verdict figure: each model's difference from the baseline of its likelihood type, with 95% intervals.

Each task has a panel with an axis for each likelihood type, because scores of different types are not
comparable. Lengths are in inches, for the width of a README (850 pixels at 100 dots per inch).
"""

from __future__ import annotations

import math
import textwrap
from itertools import zip_longest
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.style import MOST_PANELS, PALETTE, palette_indices
from archbench.analysis.load.scale_order import scale_groups, task_label
from archbench.analysis.stats.arms import likelihood_group
from archbench.analysis.stats.verdicts.verdict import UNDECIDED
from archbench.analysis.tables.columns import mean_text, verdict_text
from archbench.experiments.runtime.console import plural

WIDTH = 8.5
ROW = 0.25
"""Height of one model's row. All lengths are in inches."""
TASK_TITLE = 0.5
GROUP_TITLE = 0.3
AXIS = 0.5
"""Height of the tick labels and the axis label below a group."""
GAP = 0.12
"""Space below a group without an axis."""
FOOTER = 0.62
LETTER = 0.075
"""Width of a letter of a model's name."""
LONGEST = {True: 22, False: 52}
"""Characters of a model's name before it is wrapped, with two columns of tasks (True) and with one."""
SCORES, MARGIN = 1.1, 0.12
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
    "number.\n"
    "Filled: better, worse or equivalent; open: undecided. Right: mean score with its 95% interval.\n"
    "Scores of different likelihood types are not comparable, so each type has an axis and a baseline of "
    "its own: the study's, else its best model."
)


def verdict_figure(comparison: Comparison) -> Figure | None:
    """Return the figure of a study; None if no model has a score."""
    rows = comparison.arms
    rows = rows[(rows["kind"] == "arm") & (rows["seeds"] > 0)]
    tasks = [task_rows for _, task_rows in scale_groups(rows)][:MOST_PANELS]
    if not tasks:
        return None
    pairs = list(zip_longest(tasks[::2], tasks[1::2]))
    heights = []
    for pair in pairs:
        grouped = [_groups(task_rows) for task_rows in pair if task_rows is not None]
        heights.append(
            max(
                TASK_TITLE
                + sum(
                    GROUP_TITLE * bool(name) + ROW * len(group) + _axis_height(group)
                    for name, group in groups
                )
                for groups in grouped
            )
        )
    figure = Figure(figsize=(WIDTH, sum(heights) + FOOTER), facecolor="white")
    colours = palette_indices([str(name) for name in comparison.frame["backbone"].unique()])
    top = figure.get_figheight()
    width = WIDTH if len(tasks) == 1 else WIDTH / 2
    for pair, height in zip(pairs, heights, strict=True):
        for column, task_rows in enumerate(pair):
            if task_rows is not None:
                _draw_task(figure, task_rows, column * width, width, top, colours)
        top -= height
    low, high = int(rows["seeds"].min()), int(rows["seeds"].max())
    seeds = plural(low, "seed") if low == high else f"{low} to {high} seeds"
    figure.text(
        MARGIN / WIDTH, 0.1 / figure.get_figheight(), CAPTION.format(seeds=seeds), fontsize=7.5,
        color=SOFT, va="bottom", linespacing=1.45,
    )  # fmt: skip
    return figure


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
    figure: Figure, rows: pd.DataFrame, left: float, width: float, top: float, colours: dict[str, int]
) -> None:
    """Draw one task with its upper left corner at ``left`` and ``top``."""
    height, row = figure.get_figheight(), rows.iloc[0]
    metric = str(row["metric"]).replace("_", " ")
    title = task_label(row["task"], row["scale"])
    subtitle = f"{metric}, {row['direction']} is better"
    figure.text((left + MARGIN) / WIDTH, (top - 0.2) / height, title, fontsize=11, weight="bold", color=INK)
    figure.text((left + MARGIN) / WIDTH, (top - 0.37) / height, subtitle, fontsize=8.5, color=SOFT)
    top -= TASK_TITLE
    longest = LONGEST[width < WIDTH]
    names = 0.15 + LETTER * min(longest, max(len(str(model)) for model in rows["arm"]))
    for name, group in _groups(rows):
        if name:
            figure.text((left + MARGIN) / WIDTH, (top - 0.17) / height, name, fontsize=8.5, color=SOFT)
            top -= GROUP_TITLE
        bottom = top - ROW * len(group)
        box = (left + MARGIN + names, bottom, width - 2 * MARGIN - names - SCORES, top - bottom)
        axes = figure.add_axes(
            (box[0] / WIDTH, box[1] / height, box[2] / WIDTH, box[3] / height), facecolor="none"
        )
        _draw_group(axes, group, colours, longest)
        top = bottom - _axis_height(group)


def _draw_group(axes: Any, rows: pd.DataFrame, colours: dict[str, int], longest: int) -> None:
    """Draw the models of one likelihood type: points, intervals, the zero line, names and scores."""
    for index, (_, row) in enumerate(rows.iterrows()):
        lines = textwrap.wrap(str(row["arm"]), longest)
        size = 8.5 if len(lines) == 1 else 6
        _beside(axes, index, "\n".join(lines), 0, -6, fontsize=size, color=INK)
        _beside(axes, index, mean_text(row), 1, 72 * (MARGIN + SCORES) - 8, fontsize=8, color=SOFT)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks([])
    axes.spines[["top", "left", "right"]].set_visible(False)
    axes.spines["bottom"].set_color(LINE)
    if len(rows) == 1:
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.text(0.5, 0, "the only model of its type", fontsize=8, color=SOFT, ha="center", va="center")
        return
    _draw_gains(axes, rows, colours)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, colors=SOFT, length=0)
    baseline = str(rows["baseline"].iloc[0])
    baseline = baseline if len(baseline) <= longest else "the baseline"
    axes.set_xlabel(f"← worse than {baseline}   better →", fontsize=8, color=SOFT)


def _draw_gains(axes: Any, rows: pd.DataFrame, colours: dict[str, int]) -> None:
    """Draw the zero line, and for each model its gain over the baseline with the interval."""
    gains = rows["gain"].astype(float)
    lows, highs = (rows[end].astype(float).fillna(gains) for end in ("gain_low", "gain_high"))
    ends = [0.0, *lows.dropna(), *highs.dropna()]
    span = (max(ends) - min(ends)) or 1.0
    axes.set_xlim(min(ends) - 0.08 * span, max(ends) + 0.08 * span)
    axes.axvline(0, color=INK, linewidth=1, zorder=1)
    right = max(ends) >= -min(ends)
    for position, (index, row) in enumerate(rows.iterrows()):
        colour = PALETTE[colours[str(row["backbone"])]]
        if row["arm"] == row["baseline"]:
            axes.plot(0, position, marker="|", color=colour, markersize=11, markeredgewidth=4, zorder=3)
        elif not math.isnan(gains[index]):
            gain, low, high = gains[index], lows[index], highs[index]
            bar = None if low == high else [[gain - low], [high - gain]]
            axes.errorbar(
                gain, position, xerr=bar, color=colour, linewidth=2, capsize=3, marker="o",
                markersize=7, markeredgewidth=1.8, zorder=3,
                markerfacecolor=colour if row["verdict"] != UNDECIDED else "white",
            )  # fmt: skip
            continue
        axes.annotate(
            verdict_text(row), (0, position), xytext=(7 if right else -7, 0), textcoords="offset points",
            fontsize=7.5, color=SOFT, ha="left" if right else "right", va="center", zorder=3,
        )  # fmt: skip


def _beside(axes: Any, position: int, text: str, edge: int, points: float, **style: Any) -> None:
    """Draw a text next to a row, ending ``points`` points from the left (0) or the right (1) edge."""
    axes.annotate(
        text, (edge, position), xycoords=("axes fraction", "data"), xytext=(points, 0),
        textcoords="offset points", ha="right", va="center", **style,
    )  # fmt: skip
