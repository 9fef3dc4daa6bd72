"""Scores against what they cost: training speed, decoding speed, memory, decoding state."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go

from analysis.figures.style import MOST_PANELS, REFERENCE_COLOUR, log_axis, make_panels, styles
from analysis.stats.arms import TASK_SCALE, arm_table

COSTS = {
    "training_tokens_per_second": ("training tokens per second", 1.0, "higher"),
    "decoded_per_second": ("decoded tokens per second, one sequence", 1.0, "higher"),
    "training_peak_memory_bytes": ("peak memory in training, MiB", 2.0**20, "lower"),
    "state_bytes_2k": ("decoding state at 2048 tokens, KiB", 2.0**10, "lower"),
}
"""Costs on the horizontal axes: column, label, unit, and whether more of it is better."""


def decoding_context(speed: pd.DataFrame) -> int | None:
    """The longest context after which every backbone decoded for one sequence; None where there is none."""
    rows = speed[(speed["mode"] == "decode") & (speed["batch_size"] == 1)]
    measured = rows.groupby("context")["backbone"].nunique()
    common = measured[measured == rows["backbone"].nunique()]
    return None if common.empty else int(common.index.max())


def with_costs(arms: pd.DataFrame, speed: pd.DataFrame | None) -> pd.DataFrame:
    """``arms`` with ``decoded_per_second`` of their backbone, and no state for those that keep none.

    An arm without a decoding state writes no tokens one by one, whatever its backbone can: both are NaN.
    """
    found: dict[str, float] = {}
    if speed is not None and (context := decoding_context(speed)) is not None:
        rows = speed[(speed["mode"] == "decode") & (speed["batch_size"] == 1) & (speed["context"] == context)]
        found = dict(zip(rows["backbone"], rows["tokens_per_second"], strict=True))
    keeps = arms["state_bytes_2k"] > 0
    return arms.assign(
        decoded_per_second=arms["backbone"].map(found).astype(float).where(keeps),
        state_bytes_2k=arms["state_bytes_2k"].where(keeps),
    )


def pareto_fronts(frame: pd.DataFrame, speed: pd.DataFrame | None = None) -> go.Figure | None:
    """Score against each cost of ``COSTS``, for each task and likelihood class; dominated arms are open.

    ``speed`` holds rows of ``experiments.benchmark``; without any there is no speed of decoding.
    """
    arms = with_costs(arm_table(frame).query("kind == 'arm' and seeds > 0"), speed)
    groups = list(arms.groupby([*TASK_SCALE, "likelihood"], dropna=False, sort=True))
    wanted = [(key, rows, cost) for key, rows in groups for cost in COSTS if rows[cost].notna().sum() > 1]
    wanted = wanted[: len(COSTS) * MOST_PANELS // 2]
    if not wanted:
        return None
    figure, cells = make_panels([", ".join(k for k in key if isinstance(k, str)) for key, _, _ in wanted])
    look = styles(frame)
    for (_, rows, cost), cell in zip(wanted, cells, strict=True):
        label, unit, better = COSTS[cost]
        open_arms = dominated(rows, cost, better)
        for _, row in rows[rows[cost].notna()].iterrows():
            arm, style = str(row["arm"]), look[str(row["arm"])]
            marker = {
                "color": REFERENCE_COLOUR if arm in open_arms else style["color"],
                "symbol": style["symbol"] + "-open" * (arm in open_arms),
                "size": 11,
            }
            trace = go.Scatter(
                x=[row[cost] / unit], y=[row["score"]], mode="markers", name=arm, legendgroup=arm,
                marker=marker, showlegend=False,
                hovertemplate=f"<b>{arm}</b> %{{x:.4s}}, %{{y:.4f}}<extra></extra>",
            )  # fmt: skip
            figure.add_trace(trace, **cell)
        shown = rows[cost].dropna() / unit
        wide = shown.max() > 10 * shown.min() > 0
        figure.update_xaxes(title_text=label, **(log_axis(shown) if wide else {}), **cell)
        figure.update_yaxes(title_text=str(rows["metric"].iloc[0]).replace("_", " "), **cell)
    for arm in sorted({str(arm) for _, rows, _ in wanted for arm in rows["arm"]}):  # grey ones too
        figure.add_trace(_legend_entry(arm, look[arm]), **cells[0])
    return figure


def _legend_entry(arm: str, style: dict[str, str]) -> go.Scatter:
    """An arm in its colour for the legend, and no point."""
    return go.Scatter(
        x=[math.nan], y=[math.nan], mode="markers", name=arm, legendgroup=arm,
        marker={"color": style["color"], "symbol": style["symbol"], "size": 11},
    )  # fmt: skip


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


def decoding_note(frame: pd.DataFrame, speed: pd.DataFrame | None) -> str:
    """Return of which models decoding speed was measured, in words; empty where none is shown."""
    if speed is None or (context := decoding_context(speed)) is None:
        return ""
    rows = speed[(speed["mode"] == "decode") & speed["backbone"].isin(frame["backbone"])]
    sizes = rows.groupby("backbone")["parameters_body"].last()
    listed = ", ".join(f"{name} {body:,.0f}" for name, body in sizes.items() if math.isfinite(body))
    return (
        f"Decoding was measured after {context:,} tokens, by experiments.benchmark, with models of these "
        f"non-embedding parameters: {listed}."
    ) * bool(listed)
