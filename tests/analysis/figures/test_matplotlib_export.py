"""Figures as files, drawn by Matplotlib."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import matplotlib.image
import numpy as np
import plotly.graph_objects as go
import pytest

from archbench.analysis.figures.matplotlib_export import printed
from archbench.analysis.figures.style import make_panels
from tests import ROOT

PACKAGES = ("analysis", "architectures", "benchmarks", "experiments", "slurm", "src", "tests/docs")


def svg_of(figure: go.Figure) -> str:
    return printed(figure, "svg").decode()


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]+)</text>", svg)


def test_one_module_draws_with_matplotlib() -> None:
    importing = set()
    for path in (path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "matplotlib" in text:
            for node in ast.walk(ast.parse(text)):
                modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                if any(module.split(".")[0] == "matplotlib" for module in modules):
                    importing.add(str(path.resolve().relative_to(ROOT)))
    assert importing == {"analysis/figures/matplotlib_export.py"}


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
    svg = svg_of(figure)
    assert svg == svg_of(figure)
    assert "#0072b2" in svg
    assert "fill-opacity: 0.15" in svg
    assert {"FLOPs", "a label", "a panel", "arm"} <= set(texts(svg))
    assert printed(figure, "pdf").startswith(b"%PDF")
    (tmp_path / "f.png").write_bytes(printed(figure, "png"))
    pixels = matplotlib.image.imread(tmp_path / "f.png")
    assert pixels.shape[1] > 600
    assert pixels.min() < 0.5 < pixels.max()  # something is drawn


def test_a_map_has_the_colours_and_texts_of_its_cells() -> None:
    figure, [cell] = make_panels([""])
    trace = go.Heatmap(
        z=[[0.0, 1.0], [0.25, np.nan]], x=["a<br>b", "c"], y=["d", "e"], zmin=0, zmax=1,
        colorscale=[[0, "#000000"], [1, "rgb(255,255,0)"]], texttemplate="%{z:.2f}", xgap=1,
        colorbar={"title": {"text": "share"}},
    )  # fmt: skip
    svg = svg_of(figure.add_trace(trace, **cell))
    assert {"a", "b", "c", "d", "e", "0.00", "1.00", "0.25", "share"} <= set(texts(svg))
    assert "#404000" in svg  # a quarter of the way
    colours = dict(re.findall(r'<text style="[^"]*?(?:fill: (#\w+))?"[^>]*>(?=(0.00|1.00)<)', svg))
    assert "#ffffff" in colours  # on black; black is SVG's default


def test_bars_begin_at_their_base() -> None:
    figure, [cell] = make_panels([""])
    bars = go.Bar(x=[30, 20], y=["a", "b"], base=[50, 60], orientation="h", marker={"color": "#D55E00"})
    figure.add_trace(bars, **cell).update_xaxes(range=[0, 100], **cell)
    paths = re.findall(r'<path d="([^"]*)" clip-path[^>]*style="fill: #d55e00', svg_of(figure))
    lefts, rights = zip(*((min(xs), max(xs)) for xs in map(horizontal, paths)), strict=True)
    widths = [right - left for left, right in zip(lefts, rights, strict=True)]
    assert widths[0] / widths[1] == pytest.approx(1.5)
    assert rights[0] == pytest.approx(rights[1])


def horizontal(path: str) -> list[float]:
    """Return the horizontal positions of a path."""
    return [float(number) for number in re.findall(r"[ML] ([\d.]+)", path)]


def test_a_figure_of_given_size_has_axes_and_texts_in_their_places() -> None:
    figure = go.Figure(go.Scatter(x=[0, 1], y=[0, 1], mode="markers", marker={"color": "#0072B2"}))
    figure.update_layout(
        autosize=False, width=500, height=200, xaxis={"domain": [0.5, 1], "range": [0, 1]},
        yaxis={"domain": [0, 0.5], "range": [0, 1], "visible": False},
    )  # fmt: skip
    figure.add_annotation(
        text="<b>a title</b>", xref="paper", yref="paper", x=0.25, y=0.75, xanchor="left",
        yanchor="bottom", showarrow=False,
    )  # fmt: skip
    figure.add_annotation(
        text="beside", xref="x domain", yref="y", x=0, y=0.5, xshift=-10, xanchor="right",
        yanchor="middle", showarrow=False,
    )  # fmt: skip
    figure.add_vline(0.5, line={"color": "#D55E00"})
    svg = svg_of(figure)
    assert 'viewBox="0 0 360 144"' in svg  # 72 points of 100 pixels
    [line] = re.findall(r'<path d="([^"]*)"[^>]*style="[^"]*stroke: #d55e00', svg)
    assert horizontal(line) == [270, 270]
    assert re.search(r"font-weight: 700|font: 700", svg)
    assert {"a title", "beside"} <= set(texts(svg))
    places = re.findall(r'<text style="[^"]*" x="([\d.]+)" y="([\d.]+)"[^>]*>(a title|beside)', svg)
    assert [float(x) for x, _, text in places if text == "a title"] == [90]


@pytest.mark.parametrize(("letters", "lines"), [(5, 1), (40, 4)])
def test_a_legend_is_as_wide_as_the_figure(letters: int, lines: int) -> None:
    figure, [cell] = make_panels([""])
    for name in "abcd":
        figure.add_trace(go.Scatter(x=[1], y=[1], name=name * letters, line={"color": "#0072B2"}), **cell)
    found = re.findall(r'(?:y="|translate\([\d.]+ )([\d.]+)[^>]*>(?:aa|bb|cc|dd)', svg_of(figure))
    assert len(set(found)) == lines


def test_a_row_may_have_fewer_panels() -> None:
    figure, cells = make_panels(["a", "b", "c"])
    assert len(list(figure.select_xaxes())) == 3
    for cell in cells:
        figure.add_trace(go.Scatter(x=[1], y=[1], line={"color": "#0072B2"}), **cell)
    assert {"a", "b", "c"} <= set(texts(svg_of(figure)))
