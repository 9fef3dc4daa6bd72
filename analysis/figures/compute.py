"""The score of each model over training compute, for a study with several budgets."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.style import (
    MOST_PANELS,
    PALETTE,
    REFERENCE_COLOUR,
    SYMBOLS,
    log_axis,
    make_panels,
    palette_indices,
)
from archbench.analysis.stats.arms import ranked
from archbench.analysis.stats.compute.multiplier import SAME_BUDGET
from archbench.analysis.stats.targets.performance_profile import lines
from archbench.analysis.tables.format import budget
from archbench.analysis.tables.sentences import with_likelihood


def score_over_compute(comparison: Comparison) -> go.Figure | None:
    """Draw test scores with 95% intervals over seeds against training FLOPs, a line for each backbone.

    Trivial baselines of the task near these scores are thin horizontal lines. A panel for each task and
    likelihood type; None if no backbone was trained with several budgets. A panel is left out if two of its
    models differ in something else than the budget.
    """
    table = comparison.table
    arms = table[ranked(table) & table["training_flops"].gt(0)]
    arms = arms.assign(line=lines(arms)).sort_values("training_flops")
    panels = [group for group in arms.groupby(["task", "likelihood"], dropna=False) if has_budgets(group[1])][
        :MOST_PANELS
    ]
    if not panels:
        return None
    figure, cells = make_panels([with_likelihood(*key) for key, _ in panels])
    indices, in_legend = palette_indices([str(name) for name in comparison.frame["backbone"].unique()]), set()
    for (key, rows), cell in zip(panels, cells, strict=True):
        last = (
            rows.groupby("line")["score"].last().sort_values(ascending=rows["direction"].iloc[0] == "lower")
        )
        for line in last.index:  # the best at its largest budget first, as the lines end
            points = rows[rows["line"] == line]
            index = indices[str(points["backbone"].iloc[0])]
            figure.add_trace(_line(str(line), points, index, legend=line not in in_legend), **cell)
            in_legend.add(line)
        for name, score in _near(table[(table["kind"] == "reference") & (table["task"] == key[0])], rows):
            figure.add_trace(_reference(name, score, rows), **cell)
        metric, direction = rows.iloc[0][["metric", "direction"]]
        figure.update_xaxes(title_text="training FLOPs", **log_axis(rows["training_flops"], budget), **cell)
        title = f"{str(metric).replace('_', ' ')} ({direction} is better)"
        figure.update_yaxes(title_text=title, **cell)
    return figure


def has_budgets(rows: pd.DataFrame) -> bool:
    """Return whether the models of a line have different budgets, and some line has several.

    Args:
        rows: models of one task and likelihood type, by increasing ``training_flops``.
    """
    ratios = rows.groupby("line")["training_flops"].transform(lambda flops: flops / flops.shift())
    return bool(ratios.notna().any() and ratios.dropna().gt(SAME_BUDGET).all())


def _near(references: pd.DataFrame, rows: pd.DataFrame) -> list[tuple[str, float]]:
    """Return name and score of the references that are at most half the range of the scores outside it."""
    low, high = rows["score"].min(), rows["score"].max()
    margin = (high - low) / 2
    near = references[references["score"].between(low - margin, high + margin)]
    near = near.drop_duplicates(["arm", "score"])  # the same at each budget
    return [(str(name), float(score)) for name, score in zip(near["arm"], near["score"], strict=True)]


def _reference(name: str, score: float, rows: pd.DataFrame) -> go.Scatter:
    """Return a horizontal line with its name and score, at the budget whose models are further from it."""
    flops, distance = rows["training_flops"], (rows["score"] - score).abs()
    ends = float(flops.min()), float(flops.max())
    at_first, at_last = (distance[flops.between(end / SAME_BUDGET, end * SAME_BUDGET)].min() for end in ends)
    side = "top" if score < (rows["score"].min() + rows["score"].max()) / 2 else "bottom"
    label = f"{name} {score:.3g}"
    texts, anchor = ([label, ""], "right") if at_first > at_last else (["", label], "left")
    return go.Scatter(
        x=list(ends), y=[score] * 2, mode="lines+text", text=texts, textposition=f"{side} {anchor}",
        textfont={"color": REFERENCE_COLOUR}, name=name, showlegend=False,
        line={"color": REFERENCE_COLOUR, "width": 1, "dash": "dot"},
        hovertemplate=f"<b>{name}</b> {score:.4f}<extra></extra>",
    )  # fmt: skip


def _line(line: str, points: pd.DataFrame, index: int, *, legend: bool) -> go.Scatter:
    has_interval = points["low"].map(math.isfinite)
    above = (points["high"] - points["score"]).where(has_interval, 0.0)
    below = (points["score"] - points["low"]).where(has_interval, 0.0)
    return go.Scatter(
        x=points["training_flops"].tolist(), y=points["score"].tolist(), mode="lines+markers",
        name=line, legendgroup=line, showlegend=legend,
        line={"color": PALETTE[index], "width": 2.5}, marker={"symbol": SYMBOLS[index], "size": 9},
        error_y={
            "type": "data", "symmetric": False, "array": above.tolist(), "arrayminus": below.tolist(),
            "color": PALETTE[index], "thickness": 1.5,
        },
        text=[f"{budget(flops)} FLOPs, {seeds} seeds" for flops, seeds in
              zip(points["training_flops"], points["seeds"], strict=True)],
        hovertemplate=f"<b>{line}</b> %{{y:.4f}}<br>%{{text}}<extra></extra>",
    )  # fmt: skip
