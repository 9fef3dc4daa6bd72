"""The verdict figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.matplotlib_export import printed
from archbench.analysis.figures.verdicts import verdict_figure
from archbench.analysis.load.study import load_study


def drawn(frame: pd.DataFrame) -> str:
    figure = verdict_figure(Comparison(frame))
    assert figure is not None
    return printed(figure, "svg").decode()


def test_each_likelihood_type_has_an_axis_and_a_baseline(study: Path) -> None:
    frame = load_study(study, "compare")
    figure = verdict_figure(Comparison(frame))
    assert figure is not None
    # Recall; and of the text exact, bound, pseudo.
    labels = [axis.title.text for axis in figure.select_xaxes()]
    assert labels == ["← worse than decoder   better →"] * 2 + [None, None]
    svg = drawn(frame)
    assert svg == drawn(frame)
    for words in ("recall, nano", "exact likelihood", "pseudo-likelihood", "the only model of its type"):
        assert f">{words}<" in svg
    assert "not compared" in svg  # moe lacks runs


def test_points_are_the_gains_over_the_baseline(study: Path) -> None:
    figure = verdict_figure(Comparison(load_study(study, "compare")))
    assert figure is not None
    [point] = figure.select_traces({"name": "mamba", "xaxis": "x"})
    assert point.x[0] == pytest.approx(-0.09, abs=0.01)  # 0.90 against 0.99
    assert point.error_x.array[0] > 0
    assert point.marker.color != "white"  # separated


def test_there_is_none_without_scores(write_run: Any, tmp_path: Path) -> None:
    write_run("decoder", 0, killed=True)
    assert verdict_figure(Comparison(load_study(tmp_path / "runs", "compare"))) is None
