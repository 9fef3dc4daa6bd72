"""Where in the text a model gains: bits per token of each slice, against the baseline."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from analysis.figures.style import MOST_PANELS, PANEL_HEIGHT, REFERENCE_COLOUR, make_panels, styles

GROUPINGS = {
    "repeat": "repeated n-gram",
    "kind": "kind of text",
    "frequency": "training frequency",
    "position": "tokens before it",
}
"""Groupings of a figure, with the titles of their panels; ``recall`` is a summary of ``repeat``."""


def slice_gains(table: pd.DataFrame, frame: pd.DataFrame) -> go.Figure | None:
    """Gain of each model over its baseline on each slice, to the right where better; None without any.

    Bars are the simultaneous 95% interval over seeds, and else, of few seeds, twice the standard error over
    documents. A panel for each grouping, of the likelihood type with the most models of each task.

    Args:
        table: from ``analysis.stats.text_slices.slice_table``.
        frame: from ``load_study``, for the models' colours.
    """
    rows = table[table["gain"].notna() & table["by"].isin(list(GROUPINGS))]
    panels = []
    for (task, scale), own in rows.groupby(["task", "scale"], sort=True):
        widest = own.groupby("likelihood")["arm"].nunique().idxmax()
        own = own[own["likelihood"] == widest]
        for by, words in GROUPINGS.items():
            if not (cells := own[own["by"] == by]).empty:
                panels.append((f"{task}, {scale}: {words}", cells))
    panels = panels[:MOST_PANELS]
    if not panels:
        return None
    figure, places = make_panels([title for title, _ in panels])
    look, named = styles(frame), set()
    for (_, cells), place in zip(panels, places, strict=True):
        names = list(dict.fromkeys(cells["slice"]))
        arms = sorted(cells["arm"].unique())
        for number, arm in enumerate(arms):
            own, style = cells[cells["arm"] == arm], look[str(arm)]
            shift = 0.6 * ((number + 0.5) / len(arms) - 0.5)
            half = (own["high"] - own["gain"]).fillna(2 * own["item_se"]).fillna(0)
            figure.add_trace(
                go.Scatter(
                    x=own["gain"].tolist(), y=[names.index(name) + shift for name in own["slice"]],
                    mode="markers", name=str(arm), legendgroup=str(arm), showlegend=arm not in named,
                    customdata=own["slice"].tolist(),
                    error_x={"type": "data", "array": half.tolist(), "color": style["color"], "thickness": 1},
                    marker={"color": style["color"], "symbol": style["symbol"], "size": 8},
                    hovertemplate=f"<b>{arm}</b>, %{{customdata}}: %{{x:.4f}}<extra></extra>",
                ), **place,
            )  # fmt: skip
            named.add(arm)
        shares = cells.drop_duplicates("slice").set_index("slice")["share"]
        figure.update_yaxes(
            tickvals=list(range(len(names))), ticktext=[f"{name} ({shares[name]:.1%})" for name in names],
            range=[len(names) - 0.5, -0.5], automargin=True, zeroline=False, **place,
        )  # fmt: skip
        figure.update_xaxes(
            title_text=f"fewer bits per token than {cells['baseline'].iloc[0]}",
            zerolinecolor=REFERENCE_COLOUR, **place,
        )  # fmt: skip
    figure.update_layout(height=PANEL_HEIGHT * ((len(panels) + 1) // 2))
    return figure
