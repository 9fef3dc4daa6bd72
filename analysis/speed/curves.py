"""Speed against length, and beside it what the machine could reach: the roofline.

A repetition (a training step, a prompt, a decoded token) takes at least the time of its FLOPs at the rate
of a matrix product and at least that of moving its bytes at the rate of memory, both measured in the same
process (``experiments.benchmark.timing``). The slower of the two is the roof of Williams et al. 2009
(doi 10.1145/1498765.1498785). A row without a rate of memory has no roof. Nor has a cell that is faster than
its roof, whose calibration was disturbed.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.figures.style import MOST_PANELS, PALETTE, SYMBOLS, log_axis, make_panels, places
from analysis.speed.rows import extremes
from analysis.tables.format import si

RATES = ("flops", "matmul_flops_per_second", "least_bytes", "memory_bytes_per_second")


def with_roof(speed: pd.DataFrame) -> pd.DataFrame:
    """``speed`` with ``roof`` (tokens per second that the machine allows) and ``share`` (reached of it).

    Both are NaN where a row lacks one of ``RATES`` or is faster than its roof.
    """
    flops, matmul, moved, memory = (speed[column].astype(float) for column in RATES)
    seconds = np.maximum(flops / matmul, moved / memory)  # NaN if either is
    roof = speed["tokens"].astype(float) / seconds
    share = speed["tokens_per_second"] / roof
    return speed.assign(roof=roof.where(share <= 1), share=share.where(share <= 1), over=share > 1)


def speed_curves(speed: pd.DataFrame) -> go.Figure | None:
    """Tokens per second against context, a panel for each mode and group of rows; dotted: the roof of each.

    Panels stand in the order of the rows, which is that of ``analysis.speed.rows.load_all_modes``.
    """
    rows = extremes(with_roof(speed))
    groups = list(rows.groupby(["mode", "group"], sort=False))[:MOST_PANELS]
    if not groups:
        return None
    figure, cells = make_panels([f"{mode}, {group}" for (mode, group), _ in groups])
    place, named = places([str(b) for b in speed["backbone"].unique()]), set()
    for (_, shown), cell in zip(groups, cells, strict=True):
        for backbone, own in shown.sort_values("context").groupby("backbone", sort=True):
            for trace in _lines(str(backbone), own, place[str(backbone)], legend=backbone not in named):
                figure.add_trace(trace, **cell)
            named.add(backbone)
        contexts = sorted(int(context) for context in shown["context"].unique())
        figure.update_xaxes(
            title_text="context, tokens", type="log", tickvals=contexts,
            ticktext=[f"{context:,}" for context in contexts], **cell,
        )  # fmt: skip
        rates = [*shown["tokens_per_second"], *shown["roof"]]
        figure.update_yaxes(title_text="tokens per second", **log_axis(rates), **cell)
    return figure


def _lines(backbone: str, own: pd.DataFrame, index: int, *, legend: bool) -> list[go.Scatter]:
    """Return what a backbone reached and, where it is known, its roofline."""
    colour, common = PALETTE[index], {"name": backbone, "legendgroup": backbone}
    reached = ["" if np.isnan(share) else f", {share:.1%} of its roofline" for share in own["share"]]
    measured = go.Scatter(
        x=own["context"].tolist(), y=own["tokens_per_second"].tolist(), mode="lines+markers",
        showlegend=legend, line={"color": colour}, marker={"symbol": SYMBOLS[index]}, customdata=reached,
        hovertemplate=f"<b>{backbone}</b> at %{{x}}: %{{y:.4s}} tokens/s%{{customdata}}<extra></extra>",
        **common,
    )  # fmt: skip
    if own["roof"].isna().all():
        return [measured]
    roof = go.Scatter(
        x=own["context"].tolist(), y=own["roof"].tolist(), mode="lines", showlegend=False,
        line={"color": colour, "dash": "dot", "width": 1.3},
        hovertemplate=f"roofline of {backbone} at %{{x}}: %{{y:.4s}} tokens/s<extra></extra>", **common,
    )  # fmt: skip
    return [measured, roof]


SHARE_HEAD = ["backbone", "mode", "context", "tokens/s", "roofline, tokens/s", "of the roofline"]


def share_rows(speed: pd.DataFrame) -> list[list[str]]:
    """At the longest context of each panel of ``speed_curves``, what is reached of the roof: rows of text."""
    rows = extremes(with_roof(speed))
    longest = rows.groupby(["mode", "group", "backbone"])["context"].transform("max")
    return [
        [
            str(row.backbone), f"{row.mode}, {row.batch_size} at once", f"{row.context:,}",
            si(row.tokens_per_second), si(row.roof), "-" if np.isnan(row.share) else f"{row.share:.1%}",
        ]
        for row in rows[rows["context"] == longest].itertuples()
    ]  # fmt: skip


def roof_notes(speed: pd.DataFrame) -> list[str]:
    """Return why measurements have no roofline, in words."""
    rows = extremes(with_roof(speed))
    over, unknown = int(rows["over"].sum()), int((rows["roof"].isna() & ~rows["over"]).sum())
    notes = []
    if over:
        notes.append(
            f"{over} of {len(rows)} measurements exceed their roofline, so its calibration was disturbed"
        )
    if unknown:
        notes.append(
            f"{unknown} of {len(rows)} measurements lack a memory bandwidth or GEMM rate: measure again"
        )
    return notes
