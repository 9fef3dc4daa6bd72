"""Where in the text a model gains: bits per token of each slice, against the baseline."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from analysis.figures.style import MOST_PANELS, PANEL_HEIGHT, REFERENCE_COLOUR, make_panels, styles

GROUPINGS = {
    "repeat": "longest earlier n-gram that ends with the token",
    "kind": "kind of text",
    "frequency": "frequency in the training text",
    "position": "tokens before it in the window",
}
"""Groupings of a figure, with the titles of their panels; ``recall`` is a summary of ``repeat``."""


def slice_gains(table: pd.DataFrame, frame: pd.DataFrame) -> go.Figure | None:
    """Gain of each model over its baseline on each slice, up where better; None where there is none.

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
            high = (own["high"] - own["gain"]).fillna(2 * own["item_se"]).fillna(0)
            figure.add_trace(
                go.Scatter(
                    x=[names.index(name) + shift for name in own["slice"]], y=own["gain"].tolist(),
                    mode="markers", name=str(arm), legendgroup=str(arm), showlegend=arm not in named,
                    customdata=own["slice"].tolist(),
                    error_y={"type": "data", "array": high.tolist(), "color": style["color"], "thickness": 1},
                    marker={"color": style["color"], "symbol": style["symbol"], "size": 8},
                    hovertemplate=f"<b>{arm}</b>, %{{customdata}}: %{{y:.4f}}<extra></extra>",
                ), **place,
            )  # fmt: skip
            named.add(arm)
        labels = [f"{name}<br>{cells.loc[cells['slice'] == name, 'share'].iloc[0]:.1%}" for name in names]
        figure.update_xaxes(
            tickvals=list(range(len(names))), ticktext=labels, range=[-0.5, len(names) - 0.5], zeroline=False,
            **place,
        )  # fmt: skip
        baseline = cells["baseline"].iloc[0]
        figure.update_yaxes(
            title_text=f"fewer bits per token than {baseline}", zerolinecolor=REFERENCE_COLOUR, **place
        )
    figure.update_layout(height=PANEL_HEIGHT * ((len(panels) + 1) // 2))
    return figure
