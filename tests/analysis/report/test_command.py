"""The report command: its files and its mistakes. The page in a browser: test_browser.py."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import pytest

from analysis.report.__main__ import main


def test_the_command_writes_the_page_and_its_figures(
    study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "analysis.report.__main__.FILE_FORMATS", ("svg",)
    )  # all kinds of one figure: the next test
    assert main([f"runs={study}"]) == 0
    folder = study / "compare" / "report"
    assert (folder / "report.html").read_text().startswith("<!DOCTYPE html>")
    figures = sorted(path.name for path in (folder / "figures").iterdir())
    assert "learning_curves.svg" in figures
    assert "pareto_fronts.svg" in figures
    assert "scaling_laws.svg" not in figures  # the study has nothing for it
    svg = (folder / "figures" / "learning_curves.svg").read_text()
    for words in ("training tokens", "bits per byte", ">decoder<", ">mamba<"):
        assert words in svg
    assert "report.html" in capsys.readouterr().out


def test_a_figure_is_printed_in_three_kinds_alike(tmp_path: Path) -> None:
    import plotly.graph_objects as go

    from analysis.figures.matplotlib_export import printed
    from analysis.figures.style import make_panels

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


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("stduy=x", "did you mean 'study='?"),
        ("study=", "study= is empty"),
        ("study=comparr", "did you mean 'compare'?"),
        ("speed=none.parquet", "none.parquet"),
    ],
)
def test_mistakes_are_one_line(
    study: Path, argument: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"runs={study}", argument]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
