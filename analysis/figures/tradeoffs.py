"""Scores against costs: training and decoding speed, memory of a GPU, decoding state."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.style import MOST_PANELS, REFERENCE_COLOUR, log_axis, make_panels, styles
from archbench.analysis.load.scale_order import TASK_SCALE, scale_groups, task_label
from archbench.analysis.stats.arms import ranked
from archbench.analysis.stats.trusted_speeds import given
from archbench.analysis.tables.sentences import with_likelihood

MEMORY = "training_peak_memory_bytes"
COSTS = {
    "training_tokens_per_second": ("training tokens per second", 1.0, "higher"),
    "decoded_per_second": ("decoded tokens per second", 1.0, "higher"),
    MEMORY: ("peak memory of the GPU in training, MiB", 2.0**20, "lower"),
    "state_bytes_2k": ("decoding state at 2048 tokens, KiB", 2.0**10, "lower"),
}
"""Costs on the horizontal axes: column, label, unit, and whether higher or lower is better."""
MOST_LABELS = 10
"""Number of models of a panel up to which all are labelled; with more, only those on the front are."""


def decoding_context(speed: pd.DataFrame) -> int | None:
    """Return the longest context at which every backbone was measured decoding one sequence; None without."""
    rows = speed[(speed["mode"] == "decode") & (speed["batch_size"] == 1)]
    measured = rows.groupby("context")["backbone"].nunique()
    common = measured[measured == rows["backbone"].nunique()]
    return None if common.empty else int(common.index.max())


def with_costs(arms: pd.DataFrame, speed: pd.DataFrame | None) -> pd.DataFrame:
    """Return ``arms`` with the column ``decoded_per_second`` of their backbone.

    An arm without a decoding state does not generate token by token: both columns are NaN.
    """
    decoding_speed: dict[str, float] = {}
    if speed is not None and (context := decoding_context(speed)) is not None:
        rows = speed[(speed["mode"] == "decode") & (speed["batch_size"] == 1) & (speed["context"] == context)]
        decoding_speed = dict(zip(rows["backbone"], rows["tokens_per_second"], strict=True))
    keeps = arms["state_bytes_2k"] > 0
    return arms.assign(
        decoded_per_second=arms["backbone"].map(decoding_speed).astype(float).where(keeps),
        state_bytes_2k=arms["state_bytes_2k"].where(keeps),
    )


def measured_costs(frame: pd.DataFrame) -> dict[str, tuple[str, float, str]]:
    """Return ``COSTS``; without memory if it was measured for the full process, as on a CPU."""
    on_gpu = (frame["device_name"].dropna() == "cuda").all()
    return {key: value for key, value in COSTS.items() if key != MEMORY or on_gpu}


def pareto_fronts(comparison: Comparison) -> go.Figure | None:
    """Draw the score against each cost, for each task and likelihood type, with 95% intervals over seeds.

    Arms that have not learned the task are left out. A dotted line connects the Pareto front; dominated arms
    have open markers.
    """
    frame, table, speed = comparison.frame, comparison.table, comparison.speed
    arms = with_costs(table[ranked(table)], None if speed is None else given(speed))
    groups = list(scale_groups(arms, [*TASK_SCALE, "likelihood"], dropna=False))
    costs = measured_costs(frame)
    panels = [(key, rows, cost) for key, rows in groups for cost in costs if rows[cost].notna().sum() > 1]
    panels = panels[: len(COSTS) * MOST_PANELS // 2]
    if not panels:
        return None
    titles = [
        with_likelihood(task_label(task, scale), likelihood) for (task, scale, likelihood), _, _ in panels
    ]
    figure, cells = make_panels(titles)
    look = styles(frame)
    for (_, rows, cost), cell in zip(panels, cells, strict=True):
        for trace in _panel(rows[rows[cost].notna()], cost, look):
            figure.add_trace(trace, **cell)
        label, unit, better = COSTS[cost]
        costs_in_unit = rows[cost].dropna() / unit
        ticks = log_axis(costs_in_unit) if _is_log(costs_in_unit) else {}
        figure.update_xaxes(title_text=f"{label} ({better} is better)", **ticks, **cell)
        metric, direction = rows.iloc[0][["metric", "direction"]]
        title = f"{str(metric).replace('_', ' ')} ({direction} is better)"
        figure.update_yaxes(title_text=title, **_with_margin(rows), **cell)
    figure.update_layout(margin_t=40)  # models are labelled: there is no legend
    return figure


def _panel(rows: pd.DataFrame, cost: str, look: dict[str, dict[str, str]]) -> list[go.Scatter]:
    """Return the front and the labelled points of one panel."""
    _, unit, better = COSTS[cost]
    open_arms = dominated(rows, cost, better)
    front = rows[~rows["arm"].isin(open_arms)].sort_values(cost)
    traces = [
        go.Scatter(
            x=(front[cost] / unit).tolist(), y=front["score"].tolist(), mode="lines", hoverinfo="skip",
            name="front", line={"color": REFERENCE_COLOUR, "dash": "dot", "width": 1.5}, showlegend=False,
        )
    ]  # fmt: skip
    positions = _label_positions(rows.set_index("arm")[cost])
    labelled = set(rows["arm"] if len(rows) <= MOST_LABELS else front["arm"])
    for _, row in rows.sort_values(cost).iterrows():
        model, style = str(row["arm"]), look[str(row["arm"])]
        has_interval = math.isfinite(row["low"])
        colour = REFERENCE_COLOUR if model in open_arms else style["color"]
        symbol = style["symbol"] + "-open" * (model in open_arms)
        traces.append(
            go.Scatter(
                x=[row[cost] / unit], y=[row["score"]], mode="markers+text", name=model, legendgroup=model,
                text=[model if model in labelled else ""], textfont={"size": 11},
                textposition=positions[model],
                marker={"color": colour, "symbol": symbol, "size": 11}, showlegend=False, cliponaxis=False,
                error_y={
                    "type": "data", "symmetric": False, "color": colour, "thickness": 1,
                    "array": [row["high"] - row["score"] if has_interval else 0.0],
                    "arrayminus": [row["score"] - row["low"] if has_interval else 0.0],
                },
                hovertemplate=f"<b>{model}</b> %{{x:.4s}}, %{{y:.4f}}<extra></extra>",
            )
        )  # fmt: skip
    return traces


def _with_margin(rows: pd.DataFrame) -> dict[str, list[float]]:
    """Return the range of the vertical axis, with room for names below and above the points."""
    ends = rows[["score", "low", "high"]].astype(float).to_numpy().ravel()
    ends = ends[np.isfinite(ends)]
    margin = 0.12 * ((ends.max() - ends.min()) or 1.0)
    return {"range": [float(ends.min() - margin), float(ends.max() + margin)]}


def _is_log(costs: pd.Series) -> bool:
    return bool(costs.max() > 10 * costs.min() > 0)


def _label_positions(costs: pd.Series) -> dict[str, str]:
    """Return where the name of each model is written, so that none crosses an axis or leaves the panel.

    Names of points in the left third begin at the point, those in the right third end there. They alternate
    between above and below.
    """
    scaled = costs.map(math.log) if _is_log(costs) else costs
    spread = float(scaled.max() - scaled.min()) or 1.0
    positions = {}
    for index, (model, value) in enumerate(scaled.sort_values().items()):
        fraction = (value - scaled.min()) / spread
        side = "right" if fraction < 1 / 3 else "left" if fraction > 2 / 3 else "center"
        positions[str(model)] = f"{'top' if index % 2 else 'bottom'} {side}"
    return positions


def dominated(rows: pd.DataFrame, cost: str, better: str) -> set[str]:
    """Return the arms that are Pareto-dominated: another is as good in score and cost, and better in one."""
    score = rows["score"] * (1 if rows["direction"].iloc[0] == "higher" else -1)
    signed_cost = rows[cost] * (1 if better == "higher" else -1)
    dominated_arms = set()
    for i in rows.index:
        as_good = (score >= score[i]) & (signed_cost >= signed_cost[i])
        if (as_good & ((score > score[i]) | (signed_cost > signed_cost[i]))).any():
            dominated_arms.add(str(rows.loc[i, "arm"]))
    return dominated_arms


def decoding_note(frame: pd.DataFrame, speed: pd.DataFrame | None) -> str:
    """Return a sentence with the models for which decoding speed was measured; empty without."""
    if speed is None or (context := decoding_context(speed)) is None:
        return ""
    rows = speed[(speed["mode"] == "decode") & speed["backbone"].isin(frame["backbone"])]
    sizes = rows.groupby("backbone")["parameters_body"].last()
    listed = ", ".join(f"{name} {body:,.0f}" for name, body in sizes.items() if math.isfinite(body))
    return (
        f"Decoding was measured of one sequence after {context:,} tokens, by archbench benchmark, with "
        f"models of these non-embedding parameters: {listed}."
    ) * bool(listed)
