"""Gain of each model over the baseline on each slice of the text, in bits per token."""

from __future__ import annotations

import plotly.graph_objects as go

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.style import MOST_PANELS, PANEL_HEIGHT, REFERENCE_COLOUR, make_panels, styles
from archbench.analysis.load.scale_order import scale_groups, task_label

GROUPINGS = {
    "repeat": "repeated n-gram",
    "kind": "kind of text",
    "frequency": "training frequency",
    "position": "tokens before it",
}
"""Groupings of a figure, with the titles of their panels; ``recall`` is a summary of ``repeat``."""


def slice_gains(comparison: Comparison) -> go.Figure | None:
    """Draw the gain of each model over its baseline on each slice (right: better); None without gains.

    Bars are the 95% interval over seeds, or, with too few seeds, twice the standard error over
    documents. Each task has a panel for each grouping, for the likelihood type with the most models.
    """
    table = comparison.slices
    rows = table[table["gain"].notna() & table["by"].isin(list(GROUPINGS))]
    panels = []
    for (task, scale), gains in scale_groups(rows):
        widest = gains.groupby("likelihood")["arm"].nunique().idxmax()
        gains = gains[gains["likelihood"] == widest]
        for by, label in GROUPINGS.items():
            if not (panel_rows := gains[gains["by"] == by]).empty:
                panels.append((f"{task_label(task, scale)}: {label}", panel_rows))
    panels = panels[:MOST_PANELS]
    if not panels:
        return None
    figure, panel_cells = make_panels([title for title, _ in panels])
    look, in_legend = styles(comparison.frame), set()
    for (_, panel_rows), cell in zip(panels, panel_cells, strict=True):
        names = list(dict.fromkeys(panel_rows["slice"]))
        arms = sorted(panel_rows["arm"].unique())
        for index, model in enumerate(arms):
            gains, style = panel_rows[panel_rows["arm"] == model], look[str(model)]
            shift = 0.6 * ((index + 0.5) / len(arms) - 0.5)
            half = (gains["high"] - gains["gain"]).fillna(2 * gains["item_se"]).fillna(0)
            figure.add_trace(
                go.Scatter(
                    x=gains["gain"].tolist(), y=[names.index(name) + shift for name in gains["slice"]],
                    mode="markers", name=str(model), legendgroup=str(model),
                    showlegend=model not in in_legend, customdata=gains["slice"].tolist(),
                    error_x={"type": "data", "array": half.tolist(), "color": style["color"], "thickness": 1},
                    marker={"color": style["color"], "symbol": style["symbol"], "size": 8},
                    hovertemplate=f"<b>{model}</b>, %{{customdata}}: %{{x:.4f}}<extra></extra>",
                ), **cell,
            )  # fmt: skip
            in_legend.add(model)
        shares = panel_rows.drop_duplicates("slice").set_index("slice")["share"]
        figure.update_yaxes(
            tickvals=list(range(len(names))), ticktext=[f"{name} ({shares[name]:.1%})" for name in names],
            range=[len(names) - 0.5, -0.5], automargin=True, zeroline=False, **cell,
        )  # fmt: skip
        figure.update_xaxes(
            title_text=f"fewer bits per token than {panel_rows['baseline'].iloc[0]}",
            zerolinecolor=REFERENCE_COLOUR, **cell,
        )  # fmt: skip
    figure.update_layout(height=PANEL_HEIGHT * ((len(panels) + 1) // 2))
    return figure
