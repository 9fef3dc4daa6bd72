"""Speed against length, with the roofline of the machine.

The time of a repetition (a training step, a prompt, a decoded token) is at least its FLOPs divided by the
GEMM rate, and at least its bytes divided by the memory bandwidth, both measured in the same process
(``experiments.benchmark.timing``). The slower of the two is the roofline of Williams et al. 2009
(doi 10.1145/1498765.1498785). A row without a memory bandwidth has no roofline, and neither has a row that
exceeds its roofline, because its calibration was disturbed.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from archbench.analysis.figures.style import (
    MOST_PANELS,
    PALETTE,
    SYMBOLS,
    log_axis,
    make_panels,
    palette_indices,
)
from archbench.analysis.speed.rows import extremes
from archbench.analysis.stats.grid import Grid
from archbench.analysis.tables.format import si

RATES = ("flops", "matmul_flops_per_second", "least_bytes", "memory_bytes_per_second")


def with_roof(speed: pd.DataFrame) -> pd.DataFrame:
    """Return ``speed`` with ``roof`` (roofline in tokens per second) and ``share`` (fraction of it reached).

    Both are NaN if a row lacks one of ``RATES`` or exceeds its roofline.
    """
    flops, matmul, moved, memory = (speed[column].astype(float) for column in RATES)
    seconds = np.maximum(flops / matmul, moved / memory)  # NaN if one of them is NaN
    roof = speed["tokens"].astype(float) / seconds
    reached = speed["tokens_per_second"] / roof
    return speed.assign(roof=roof.where(reached <= 1), share=reached.where(reached <= 1), over=reached > 1)


def speed_curves(speed: pd.DataFrame) -> go.Figure | None:
    """Draw tokens per second against context, a panel for each mode and group of rows; dotted: rooflines.

    Panels are in the order of the rows, which is that of ``analysis.speed.rows.load_all_modes``.
    """
    rows = extremes(with_roof(speed))
    groups = list(rows.groupby(["mode", "group"], sort=False))[:MOST_PANELS]
    if not groups:
        return None
    figure, cells = make_panels([f"{mode}, {group}" for (mode, group), _ in groups])
    palette_index, in_legend = palette_indices([str(b) for b in speed["backbone"].unique()]), set()
    for (_, panel_rows), cell in zip(groups, cells, strict=True):
        for backbone, line_rows in panel_rows.sort_values("context").groupby("backbone", sort=True):
            legend = backbone not in in_legend
            for trace in _lines(str(backbone), line_rows, palette_index[str(backbone)], legend=legend):
                figure.add_trace(trace, **cell)
            in_legend.add(backbone)
        contexts = sorted(int(context) for context in panel_rows["context"].unique())
        figure.update_xaxes(
            title_text="context, tokens", type="log", tickvals=contexts,
            ticktext=[f"{context:,}" for context in contexts], **cell,
        )  # fmt: skip
        rates = [*panel_rows["tokens_per_second"], *panel_rows["roof"]]
        figure.update_yaxes(title_text="tokens per second", **log_axis(rates), **cell)
    return figure


def _lines(backbone: str, rows: pd.DataFrame, index: int, *, legend: bool) -> list[go.Scatter]:
    """Return the measured line of a backbone and, if available, its roofline."""
    colour, common = PALETTE[index], {"name": backbone, "legendgroup": backbone}
    reached = ["" if np.isnan(value) else f", {value:.1%} of its roofline" for value in rows["share"]]
    measured = go.Scatter(
        x=rows["context"].tolist(), y=rows["tokens_per_second"].tolist(), mode="lines+markers",
        showlegend=legend, line={"color": colour}, marker={"symbol": SYMBOLS[index]}, customdata=reached,
        hovertemplate=f"<b>{backbone}</b> at %{{x}}: %{{y:.4s}} tokens/s%{{customdata}}<extra></extra>",
        **common,
    )  # fmt: skip
    if rows["roof"].isna().all():
        return [measured]
    roof = go.Scatter(
        x=rows["context"].tolist(), y=rows["roof"].tolist(), mode="lines", showlegend=False,
        line={"color": colour, "dash": "dot", "width": 1.3},
        hovertemplate=f"roofline of {backbone} at %{{x}}: %{{y:.4s}} tokens/s<extra></extra>", **common,
    )  # fmt: skip
    return [measured, roof]


def roofline_grid(speed: pd.DataFrame) -> Grid:
    """Return as text the fraction of the roofline at the longest context of each panel."""
    rows = extremes(with_roof(speed))
    longest = rows.groupby(["mode", "group", "backbone"])["context"].transform("max")
    cells = [
        [
            str(row.backbone), f"{row.mode}, {row.batch_size} at once", f"{row.context:,}",
            si(row.tokens_per_second), si(row.roof), "-" if np.isnan(row.share) else f"{row.share:.1%}",
        ]
        for row in rows[rows["context"] == longest].itertuples()
    ]  # fmt: skip
    head = ["backbone", "mode", "context", "tokens/s", "roofline, tokens/s", "of the roofline"]
    return Grid(head=head, rows=cells)


def roof_notes(speed: pd.DataFrame) -> list[str]:
    """Return the reasons why measurements have no roofline."""
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
