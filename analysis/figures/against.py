"""Scores against the column of the runs that ``study.against`` names."""

from __future__ import annotations

import plotly.graph_objects as go

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.style import PALETTE, SYMBOLS, make_panels, palette_indices
from archbench.analysis.load.scale_order import scale_groups, task_label
from archbench.analysis.stats.against_variable import label, line_name


def against_figure(comparison: Comparison) -> go.Figure | None:
    """Return scores against the variable with 95% intervals over seeds; None without ``study.against``.

    Each task has a panel, with a logarithmic axis of the variable.
    """
    panels = list(scale_groups(comparison.against))
    if not panels:
        return None
    figure, cells = make_panels([task_label(task, scale) for (task, scale), _ in panels])
    indices = palette_indices([str(name) for name in comparison.frame["backbone"].unique()])
    in_legend = set[str]()
    for (_, rows), cell in zip(panels, cells, strict=True):
        for backbone, line in rows.groupby("backbone", sort=False):
            index, name = indices[str(backbone)], line_name(str(backbone), line)
            trace = go.Scatter(
                x=line["x"].tolist(), y=line["score"].tolist(), mode="lines+markers", name=name,
                legendgroup=str(backbone), showlegend=name not in in_legend,
                line={"color": PALETTE[index]}, marker={"symbol": SYMBOLS[index], "size": 9},
                error_y={"type": "data", "array": line["half_width"].fillna(0).tolist(), "thickness": 1.5},
                hovertemplate=f"<b>{name}</b> at %{{x:.4~s}}: %{{y:.4f}}<extra></extra>",
            )  # fmt: skip
            figure.add_trace(trace, **cell)
            in_legend.add(name)
        ticks = sorted({float(f"{x:.3g}") for x in rows["x"]})
        figure.update_xaxes(
            title_text=label(rows["against"].iloc[0]), type="log", tickvals=ticks,
            ticktext=[f"{tick:g}" for tick in ticks], **cell,
        )  # fmt: skip
        figure.update_yaxes(title_text=rows["unit"].iloc[0], **cell)
    return figure
