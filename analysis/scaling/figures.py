"""Figures of fitted scaling laws for the report."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go

from archbench.analysis.figures.style import PALETTE, SYMBOLS, faint, make_panels, palette_indices
from archbench.analysis.scaling.isoflop import isoflop_profiles, with_budgets
from archbench.analysis.scaling.laws import band
from archbench.analysis.scaling.tables import Fit


def scaling_curves(fits: Mapping[str, Fit]) -> go.Figure | None:
    """Draw isoFLOP profiles with a ring at each minimum (left), and fitted frontiers with bootstrap bands."""
    if not fits:
        return None
    figure, (profile_cell, frontier_cell) = make_panels(["isoFLOP profiles", "fitted frontier"])
    palette_index = palette_indices([line.split(" ")[0] for line in fits])
    for line, fit in fits.items():
        colour, symbol = (table[palette_index[line.split(" ")[0]]] for table in (PALETTE, SYMBOLS))
        common = {"legendgroup": line, "name": line}
        for budget, points in with_budgets(fit.points).groupby("budget", sort=True):
            points = points.sort_values("size")
            figure.add_trace(
                go.Scatter(
                    x=points["size"].tolist(), y=points["loss"].tolist(), mode="lines+markers",
                    showlegend=False, line={"color": colour, "width": 1},
                    marker={"symbol": symbol, "size": 6},
                    hovertemplate=f"<b>{line}</b>, {budget:.2g} FLOPs<br>N %{{x:.3g}}: %{{y:.4f}}"
                    "<extra></extra>",
                    **common,
                ), **profile_cell,
            )  # fmt: skip
        minima = isoflop_profiles(fit.points)
        minima = minima[~minima["edge"].astype(bool)]
        ring = {"symbol": "circle-open", "size": 13, "color": colour}
        figure.add_trace(
            go.Scatter(x=minima["size"].tolist(), y=minima["loss"].tolist(), mode="markers", marker=ring,
                       showlegend=False, hoverinfo="skip", **common), **profile_cell,
        )  # fmt: skip
        flops = np.geomspace(fit.points["flops"].min(), 3 * fit.points["flops"].max(), 25)
        bands = [band([law.frontier(c) for law in fit.samples]) for c in flops]
        edge = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip", **common}
        figure.add_trace(go.Scatter(x=flops.tolist(), y=[low for low, _ in bands], **edge), **frontier_cell)
        figure.add_trace(
            go.Scatter(x=flops.tolist(), y=[high for _, high in bands], fill="tonexty",
                       fillcolor=faint(colour), **edge), **frontier_cell,
        )  # fmt: skip
        figure.add_trace(
            go.Scatter(
                x=flops.tolist(), y=[fit.law.frontier(c) for c in flops], mode="lines",
                line={"color": colour},
                hovertemplate=f"<b>{line}</b> at %{{x:.3g}} FLOPs: %{{y:.4f}}<extra></extra>", **common,
            ), **frontier_cell,
        )  # fmt: skip
    figure.update_xaxes(title_text="active non-embedding parameters", type="log", **profile_cell)
    figure.update_xaxes(title_text="training FLOPs", type="log", **frontier_cell)
    figure.update_yaxes(title_text="validation loss", **profile_cell)
    return figure
