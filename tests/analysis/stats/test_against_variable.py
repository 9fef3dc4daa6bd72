"""Scores against a number of the runs: paired changes, one line for each backbone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.against import against_figure
from archbench.analysis.figures.matplotlib_export import printed
from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.report.page import plot_json
from archbench.analysis.stats.against_variable import against_grid
from archbench.analysis.tables.study_markdown import render_markdown
from archbench.analysis.tables.study_tables import study_tables
from archbench.analysis.tables.terminal import render_tables
from tests.analysis.pages import page_of
from tests.results import write_result

SCORES = {"decoder": {1.0: 2.0, 4.0: 2.1, 16.0: 2.6}, "diffusion": {1.0: 2.5, 4.0: 2.5, 16.0: 2.45}}


@pytest.fixture
def study(write_run: Any, tmp_path: Path) -> Path:
    for backbone, scores in SCORES.items():
        for epochs, score in scores.items():
            for seed in range(3):
                folder = write_run(
                    backbone,
                    seed,
                    score + seed / 10 + (seed == 2) * (epochs - 1) / 100,
                    study="epochs",
                    likelihood="exact" if backbone == "decoder" else "bound",
                    digest=f"{int(epochs):08x}",
                    fingerprint=f"data-{epochs}",
                )
                result = json.loads((folder / "result.json").read_text())
                result["training"]["epochs"] = epochs
                write_result(folder, result)
                config = {"study": {"against": "training_epochs"}, "task": {"train_tokens": 64 // epochs}}
                OmegaConf.save(config, folder / "config.yaml")
    return tmp_path / "runs"


def test_changes_are_paired_with_the_smallest_number(study: Path) -> None:
    found = Comparison(load_study(study, "epochs")).against
    assert found[["backbone", "x"]].to_numpy().tolist() == [
        [backbone, epochs] for backbone in ("decoder", "diffusion") for epochs in (1, 4, 16)
    ]
    last = found[(found["backbone"] == "decoder") & (found["x"] == 16)].iloc[0]
    assert last["change"] == pytest.approx((0.6 + 0.6 + 0.75) / 3)
    assert last["change_half_width"] == pytest.approx(4.3027 * 0.0866025 / 3**0.5, rel=1e-4)
    assert found[found["x"] == 1]["change"].isna().all()


def test_the_table_has_a_line_for_each_backbone_and_its_class(study: Path) -> None:
    frame = load_study(study, "epochs")
    rows = Comparison(frame).against
    grid = against_grid(rows)
    assert grid.title == "text, nano: bits per byte against epochs"
    head, body = grid.head, grid.rows
    assert head == ["epochs", "decoder (exact)", "diffusion (bound)"]
    assert [line[0] for line in body] == ["1", "4", "16"]
    assert body[0][1] == "2.100 ± 0.248"
    assert body[2][1].endswith("(+0.650 ± 0.215)")
    for text in (
        render_tables(study_tables(Comparison(frame))),
        render_markdown(study_tables(Comparison(frame))),
    ):
        assert "(+0.650 ± 0.215)" in text
        assert "likelihood types are not comparable" in " ".join(text.split())
    drawn = against_figure(Comparison(frame))
    assert drawn is not None
    assert plot_json(drawn) in page_of(Comparison(frame, load_history(study, "epochs")))


def test_the_figure_is_the_same_for_the_same_frame(study: Path) -> None:
    frame = load_study(study, "epochs")
    drawn = against_figure(Comparison(frame))
    assert drawn is not None
    svg = printed(drawn, "svg")
    assert svg == printed(against_figure(Comparison(frame)), "svg")
    for words in (b"decoder (exact)", b"diffusion (bound)", b"bits/byte", b"epochs", b"16"):
        assert words in svg


def test_there_is_none_where_a_study_asks_for_nothing(study: Path) -> None:
    frame = load_study(study, "epochs").drop(columns="against")  # as written before there were any
    assert Comparison(frame).against.empty
    assert against_figure(Comparison(frame)) is None
    assert "against epochs" not in render_tables(study_tables(Comparison(frame)))


def test_a_number_that_is_not_there_is_named_with_the_nearest(study: Path) -> None:
    config = next(study.glob("epochs/*/s0/config.yaml"))
    OmegaConf.save({"study": {"against": "training_epoch"}}, config)
    with pytest.raises(ValueError, match="did you mean 'training_epochs'"):
        load_study(study, "epochs")
