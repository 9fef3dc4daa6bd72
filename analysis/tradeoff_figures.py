"""Figures of the report that weigh scores: against cost, against a baseline, over all tasks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.aggregates import performance_profile
from analysis.figures import PALETTE, PANEL_HEIGHT, REFERENCE_COLOUR, make_panels, places, styles
from analysis.report_figures import MOST_PANELS
from analysis.summary import PLACE, arm_table
from analysis.task_profile import task_scores

COSTS = {
    "training_tokens_per_second": ("training tokens per second", "higher"),
    "training_peak_memory_bytes": ("peak memory in training, bytes", "lower"),
    "state_bytes_2k": ("decoding state at 2048 tokens, bytes", "lower"),
}
"""What quality is set against: column, label, and whether more of it is better."""


def pareto_fronts(frame: pd.DataFrame) -> go.Figure | None:
    """Score against each cost of ``COSTS``, for each task and likelihood class; dominated arms are open."""
    arms = arm_table(frame).query("kind == 'arm' and seeds > 0")
    groups = list(arms.groupby([*PLACE, "likelihood"], dropna=False, sort=True))
    wanted = [(key, rows, cost) for key, rows in groups for cost in COSTS if rows[cost].notna().any()]
    wanted = [(key, rows, cost) for key, rows, cost in wanted if len(rows) > 1][: 3 * MOST_PANELS // 2]
    if not wanted:
        return None
    titles = [", ".join(str(k) for k in key if isinstance(k, str)) for key, _, _ in wanted]
    figure, cells = make_panels(titles)
    look, named = styles(frame), set()
    for (_, rows, cost), cell in zip(wanted, cells, strict=True):
        label, better = COSTS[cost]
        open_arms = dominated(rows, cost, better)
        for _, row in rows[rows[cost].notna()].iterrows():
            arm, style = str(row["arm"]), look[str(row["arm"])]
            symbol = style["symbol"] + "-open" * (arm in open_arms)
            marker = {
                "color": REFERENCE_COLOUR if arm in open_arms else style["color"],
                "symbol": symbol,
                "size": 11,
            }
            trace = go.Scatter(
                x=[row[cost]], y=[row["score"]], mode="markers", name=arm, legendgroup=arm, marker=marker,
                showlegend=arm not in named,
                hovertemplate=f"<b>{arm}</b> %{{x:.4s}}, %{{y:.4f}}<extra></extra>",
            )  # fmt: skip
            figure.add_trace(trace, **cell)
            named.add(arm)
        figure.update_xaxes(
            title_text=label, type="log" if (rows[cost].dropna() > 0).all() else "linear", **cell
        )
        figure.update_yaxes(title_text=str(rows["metric"].iloc[0]).replace("_", " "), **cell)
    return figure


def dominated(rows: pd.DataFrame, cost: str, better: str) -> set[str]:
    """The arms that another is at least as good as in both score and cost, and better in one."""
    score = rows["score"] * (1 if rows["direction"].iloc[0] == "higher" else -1)
    saved = rows[cost] * (1 if better == "higher" else -1)
    found = set()
    for i in rows.index:
        as_good = (score >= score[i]) & (saved >= saved[i])
        if (as_good & ((score > score[i]) | (saved > saved[i]))).any():
            found.add(str(rows.loc[i, "arm"]))
    return found


def forest(gains: pd.DataFrame, frame: pd.DataFrame) -> go.Figure | None:
    """Difference from the baseline on each task, to the right where better; from ``baseline_gains``."""
    if gains.empty:
        return None
    figure, [cell] = make_panels(["better than the baseline, in units of the score; 95% t-intervals"])
    look = styles(frame)
    for arm, own in gains.groupby("arm", sort=True):
        style = look[str(arm)]
        figure.add_trace(
            go.Scatter(
                x=own["gain"].tolist(), y=(own["task"] + ", " + own["scale"]).tolist(), mode="markers",
                name=str(arm),
                error_x={"type": "data", "array": own["half_width"].tolist(), "color": style["color"]},
                marker={"color": style["color"], "symbol": style["symbol"], "size": 9},
                hovertemplate=f"<b>{arm}</b> %{{x:.4f}}<extra></extra>",
            ), **cell,
        )  # fmt: skip
    figure.update_yaxes(automargin=True, **cell)
    figure.update_layout(height=max(PANEL_HEIGHT, 120 + 24 * gains["task"].nunique()))
    return figure


def profiles(frame: pd.DataFrame) -> go.Figure | None:
    """Share of runs above each score, as the mean over tasks; None below three tasks of shares."""
    scores = task_scores(frame)
    if not scores:
        return None
    figure, cells = make_panels([f"performance profile, {scale}" for scale in scores])
    thresholds = np.linspace(0, 1, 101)
    for (_, by_line), cell in zip(scores.items(), cells, strict=True):
        place = places([line.split(" ")[0] for line in by_line])
        for line, tasks in by_line.items():
            share = performance_profile(list(tasks.values()), thresholds.tolist())
            figure.add_trace(
                go.Scatter(x=thresholds.tolist(), y=share.tolist(), mode="lines", name=line, legendgroup=line,
                           line={"color": PALETTE[place[line.split(" ")[0]]], "shape": "hv"}), **cell,
            )  # fmt: skip
        figure.update_xaxes(title_text="score", **cell)
        figure.update_yaxes(title_text="share of runs above", **cell)
    return figure
