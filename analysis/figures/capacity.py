"""Capacity curves: accuracy over difficulty, and capacity over the bytes of the state."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import pandas as pd

from archbench.analysis.figures.style import MATPLOTLIB_MARKERS, PALETTE, REFERENCE_COLOUR, palette_indices
from archbench.analysis.stats.capacity import AT_LEAST, BELOW, LADDER_SCALE, Limit, capacities

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def capacity_figures(ladders: pd.DataFrame) -> dict[str, Figure]:
    """Return a figure for each ladder of ``analysis.stats.capacity.rungs``, by a name for files.

    A bound of a capacity, or of its interval, is an arrow. One legend names the models of both panels.
    """
    if ladders.empty:
        return {}
    from matplotlib.figure import Figure  # slow to import; studies without ladders do not load it

    figures = {}
    index = palette_indices(sorted(ladders["model"].unique()))
    for (ladder, scale), group in ladders.groupby(LADDER_SCALE, sort=True):
        figure = Figure(figsize=(11, 4.2), layout="constrained", facecolor="white")
        left, right = figure.subplots(1, 2)
        _accuracies(left, group, index)
        _states(right, group, index)
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=6)
        figure.suptitle(f"{ladder}, {scale}: largest difficulty at an accuracy of {group['level'].iloc[0]:g}")
        name = f"{ladder}_{scale}" if ladders["scale"].nunique() > 1 else str(ladder)
        figures[re.sub(r"\W+", "_", name)] = figure
    return figures


def _accuracies(axes: Axes, group: pd.DataFrame, index: dict[str, int]) -> None:
    for model, rows in group.groupby("model", sort=True):
        rows = rows.sort_values("difficulty")
        colour, marker = PALETTE[index[str(model)]], MATPLOTLIB_MARKERS[index[str(model)]]
        x = rows["difficulty"]
        axes.plot(x, rows["score"], label=str(model), color=colour, marker=marker)
        axes.fill_between(x, rows["low"], rows["high"], color=colour, alpha=0.15, lw=0)
    references = group.groupby("difficulty")["reference"].max().dropna()
    if len(references):
        axes.plot(references.index, references, color=REFERENCE_COLOUR, lw=1, label="best reference line")
    axes.axhline(group["level"].iloc[0], color=REFERENCE_COLOUR, ls="--", lw=1)
    _difficulty_axis(axes, group, "x")
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("test accuracy, mean and 95% interval")


def _states(axes: Axes, group: pd.DataFrame, index: dict[str, int]) -> None:
    for capacity in capacities(group):
        if not capacity.state_bytes > 0:
            continue  # it decodes without a state
        colour = PALETTE[index[capacity.model]]
        x, y = capacity.state_bytes, capacity.limit.difficulty
        axes.plot(x, y, color=colour, marker=MATPLOTLIB_MARKERS[index[capacity.model]], ls="none")
        ends = [limit for limit in (capacity.low, capacity.high) if limit is not None]
        axes.plot([x] * len(ends), [end.difficulty for end in ends], color=colour, lw=1)
        for limit in (capacity.limit, *ends):
            _arrow(axes, x, limit, colour)
    axes.set_xscale("log")
    axes.margins(x=0.25)
    _difficulty_axis(axes, group, "y")
    axes.set_xlabel("bytes of the decoding state after 2,048 tokens")


def _arrow(axes: Axes, x: float, limit: Limit, colour: str) -> None:
    """Draw the direction of a bound."""
    if limit.bound in (AT_LEAST, BELOW):
        end = (0, 16) if limit.bound == AT_LEAST else (0, -16)
        axes.annotate(
            "", (x, limit.difficulty), xytext=end, textcoords="offset points",
            arrowprops={"arrowstyle": "<-", "color": colour},
        )  # fmt: skip


def _difficulty_axis(axes: Axes, group: pd.DataFrame, which: str) -> None:
    difficulties = sorted(group["difficulty"].unique())
    low, high = difficulties[0], difficulties[-1]
    axis, set_scale, set_limits = (
        (axes.xaxis, axes.set_xscale, axes.set_xlim)
        if which == "x"
        else (axes.yaxis, axes.set_yscale, axes.set_ylim)
    )
    set_scale("log")
    axis.set_ticks(difficulties, [f"{difficulty:g}" for difficulty in difficulties])
    axis.set_ticks([], minor=True)
    margin = (high / low) ** 0.12 if high > low else math.sqrt(2)
    set_limits(low / margin, high * margin)
    axis.set_label_text(str(group["unit"].iloc[0]) + ("" if which == "x" else ", capacity"))
