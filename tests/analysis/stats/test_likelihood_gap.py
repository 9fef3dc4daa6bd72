"""Gaps of bounds above an exact likelihood: paired by seed, labelled, and only where a study asks."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from archbench.analysis.comparison import Comparison
from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.stats.likelihood_gap import gap_grid
from archbench.analysis.tables.study_markdown import render_markdown
from archbench.analysis.tables.study_tables import study_tables
from archbench.analysis.tables.terminal import render_tables
from tests.analysis.pages import page_of
from tests.results import write_result

DECODER = (2.0, 2.1, 2.2)
DIFFUSION = (2.5, 2.6, 2.9)
ERRORS = (0.01, 0.02, 0.03)


@pytest.fixture
def study(write_run: Any, tmp_path: Path) -> Path:
    for seed in range(3):
        exact = write_run("decoder", seed, DECODER[seed], study="gap")
        bound = write_run("diffusion", seed, DIFFUSION[seed], study="gap", likelihood="bound")
        write_run("encoder", seed, 1.5, study="gap", likelihood="pseudo")
        result = json.loads((bound / "result.json").read_text())
        error = {**result["metrics"][0], "name": "estimator_error", "value": ERRORS[seed]}
        result["metrics"].append(error)
        write_result(bound, result)
        OmegaConf.save({"study": {"baseline": "decoder"}}, exact / "config.yaml")
    return tmp_path / "runs"


def test_gaps_are_paired_by_seed(study: Path) -> None:
    found = Comparison(load_study(study, "gap")).gaps.set_index("arm")
    assert list(found.index) == ["decoder", "diffusion"]  # a pseudo-likelihood has no gap
    bound = found.loc["diffusion"]
    assert bound["gap"] == pytest.approx((0.5 + 0.5 + 0.7) / 3)
    # t(0.975, 2) = 4.3027, standard deviation of (0.5, 0.5, 0.7) is 0.11547
    assert bound["gap_half_width"] == pytest.approx(4.3027 * 0.11547 / math.sqrt(3), rel=1e-4)
    assert bound["ratio"] == pytest.approx((2.5 / 2.0 + 2.6 / 2.1 + 2.9 / 2.2) / 3)
    assert bound["estimator_error"] == pytest.approx(0.02)
    assert math.isnan(found.loc["decoder", "gap"])
    assert math.isnan(found.loc["decoder", "estimator_error"])


def test_the_table_shows_classes_and_says_what_a_gap_is(study: Path) -> None:
    frame = load_study(study, "gap")
    rows = Comparison(frame).gaps
    assert "upper limit" in gap_grid(rows).title
    assert gap_grid(rows).rows == [
        ["decoder", "exact", "2.100 ± 0.248 (3)", "-", "-", "-"],
        ["diffusion", "bound", "≤ 2.667 ± 0.517 (3)", "0.0200", "0.567 ± 0.287", "1.269 ± 0.107"],
    ]
    for text in (
        render_tables(study_tables(Comparison(frame))),
        render_markdown(study_tables(Comparison(frame))),
        page_of(Comparison(frame, load_history(study, "gap"))),
    ):
        assert "≤ 2.667" in text
        assert "an upper limit of the true gap" in " ".join(text.split())
    assert "diffusion is better" not in render_tables(
        study_tables(Comparison(frame))
    )  # the classes are still not ranked


def test_there_are_none_where_the_baseline_has_no_exact_score_or_the_data_differ(
    study: Path, write_run: Any
) -> None:
    frame = load_study(study, "gap")
    assert Comparison(frame.assign(baseline="encoder")).gaps.empty
    assert Comparison(frame.assign(baseline=None)).gaps.empty
    assert Comparison(frame.drop(columns="baseline")).gaps.empty  # a frame written before there were any
    other = frame["fingerprint"].where(frame["arm"] != "diffusion", "data-2")
    assert Comparison(frame.assign(fingerprint=other)).gaps.empty
    assert Comparison(frame[frame["likelihood"] != "bound"]).gaps.empty
