"""Further tests reach the tables, the page and the figure, and only where there are some."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.contexts import further_curves
from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.stats.extra_tests import (
    TRAINED,
    further_grid,
    published,
    settings,
    shared_setting,
)
from archbench.analysis.tables.study_markdown import render_markdown
from archbench.analysis.tables.study_tables import study_tables
from archbench.analysis.tables.terminal import render_tables
from tests.analysis.pages import page_of
from tests.results import write_result

LONGER = {"sequence_length=32": 0.6, "sequence_length=64": 0.2}


@pytest.fixture
def longer(write_run: Any, tmp_path: Path) -> Path:
    for backbone, drop in (("mamba", 0.0), ("decoder", 0.1)):
        for seed in (0, 1, 2):
            folder = write_run(backbone, seed, 0.9 - drop, task="recall", study="longer")
            result = json.loads((folder / "result.json").read_text())
            for test, score in LONGER.items():
                value = score - drop + seed * 0.01
                result["metrics"].append({**result["metrics"][0], "split": test, "value": value})
                other = {**result["metrics"][0], "split": test, "name": "another_metric", "value": 9.0}
                result["metrics"].append(other)
            write_result(folder, result)
            OmegaConf.save({"study": {"published": ["Someone 2020: 12.5"]}}, folder / "config.yaml")
    write_run("s4", 0, None, task="recall", study="longer", status="diverged", message="loss is nan")
    return tmp_path / "runs"


def test_scores_are_means_over_seeds_the_trained_task_first(longer: Path) -> None:
    scores = Comparison(load_study(longer, "longer")).further
    assert scores["test"].tolist() == [TRAINED, *LONGER] * 2
    assert scores["arm"].tolist() == ["mamba"] * 3 + ["decoder"] * 3  # best first, as in the table
    assert scores["score"].tolist() == pytest.approx([0.9, 0.61, 0.21, 0.8, 0.51, 0.11])
    # t of 2 degrees (4.3027) times the standard deviation 0.01 over the root of 3.
    assert scores["half_width"].tolist() == pytest.approx([0, 0.02484, 0.02484] * 2, abs=1e-5)
    assert (scores["seeds"] == 3).all()


def test_the_grid_names_the_setting_once(longer: Path) -> None:
    scores = Comparison(load_study(longer, "longer")).further
    grid = further_grid(scores)
    head, rows = grid.head, grid.rows
    assert head == ["sequence_length", TRAINED, "32", "64"]
    assert rows[1] == ["decoder", "0.800 ± 0.000", "0.510 ± 0.025", "0.110 ± 0.025"]
    scores["test"] = scores["test"].replace({"sequence_length=64": "num_pairs=9 power=0.1"})
    assert further_grid(scores).head == ["model", TRAINED, "sequence_length=32", "num_pairs=9 power=0.1"]


def test_settings_are_told_apart() -> None:
    assert settings("sequence_length=64 depth=0.5") == {"depth": "0.5", "sequence_length": "64"}
    assert shared_setting([TRAINED, "a=1", "a=2"]) == "a"
    assert (
        shared_setting(["a=1", "b=2"]) == shared_setting(["a=1 b=2", "a=1 b=3"]) == shared_setting([]) == ""
    )


def test_tables_page_and_figure_show_them(longer: Path) -> None:
    frame, history = load_study(longer, "longer"), load_history(longer, "longer")
    for text in (
        render_tables(study_tables(Comparison(frame))),
        render_markdown(study_tables(Comparison(frame))),
        page_of(Comparison(frame, history)),
    ):
        assert "0.510 ± 0.025" in text
        assert "Someone 2020: 12.5" in text
    figure = further_curves(Comparison(frame))
    assert figure is not None
    assert [trace.name for trace in figure.data] == ["mamba", "decoder"]
    assert list(figure.data[0].y) == pytest.approx([0.9, 0.61, 0.21])
    assert figure.data[0].x == ("as<br>trained", "32", "64")  # the setting is named once, below
    assert figure.layout.xaxis.title.text == "sequence length"
    assert figure.layout.yaxis.title.text == "answer accuracy"
    assert published(frame) == ["Someone 2020: 12.5"]


def test_a_study_without_any_says_nothing_of_them(study: Path) -> None:
    frame = load_study(study, "compare")
    assert Comparison(frame).further.empty
    assert further_curves(Comparison(frame)) is None
    assert "urther tests" not in render_tables(study_tables(Comparison(frame))) + page_of(
        Comparison(frame, load_history(study, "compare"))
    )
    assert "Published" not in render_markdown(study_tables(Comparison(frame)))
