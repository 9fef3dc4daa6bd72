"""Figures of the page, drawn by Matplotlib."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import plotly.graph_objects as go

from archbench.analysis.figures.matplotlib_export import printed
from archbench.analysis.figures.style import make_panels


def test_a_figure_is_printed_in_three_kinds_alike(tmp_path: Path) -> None:
    figure, [cell] = make_panels(["a panel"])
    figure.add_trace(
        go.Scatter(x=[1, 10], y=[1, 2], mode="lines+markers", name="arm", line={"color": "#0072B2"}), **cell
    )
    figure.add_trace(
        go.Scatter(x=[1, 10], y=[1, 1], mode="lines", line={"width": 0}, showlegend=False), **cell
    )
    figure.add_trace(
        go.Scatter(x=[1, 10], y=[2, 3], mode="lines", line={"width": 0}, fill="tonexty",
                   fillcolor="rgba(0,114,178,0.15)", showlegend=False), **cell,
    )  # fmt: skip
    bars = {"type": "data", "symmetric": False, "array": [0.5], "arrayminus": [0.1]}
    point = {"mode": "markers+text", "text": ["a label"], "marker": {"color": "#D55E00"}, "error_y": bars}
    figure.add_trace(go.Scatter(x=[5], y=[2], **point), **cell)
    figure.update_xaxes(title_text="FLOPs", type="log", **cell)
    svg = printed(figure, "svg")
    assert svg == printed(figure, "svg")
    assert b"#0072b2" in svg
    assert b"FLOPs" in svg
    assert b"a label" in svg
    assert printed(figure, "pdf").startswith(b"%PDF")
    (tmp_path / "f.png").write_bytes(printed(figure, "png"))
    pixels = matplotlib.image.imread(tmp_path / "f.png")
    assert pixels.shape[1] > 600
    assert pixels.min() < 0.5 < pixels.max()  # something is drawn
