"""Gaps of bounds above an exact likelihood: paired by seed, labelled, and only where a study asks."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.report.page import render_page
from archbench.analysis.stats.likelihood_gap import gap_grid, gaps
from archbench.analysis.tables.text import render_markdown, render_tables
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
    found = gaps(load_study(study, "gap")).set_index("arm")
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
    rows = gaps(frame)
    assert "upper limit" in gap_grid(rows).title
    assert gap_grid(rows).rows == [
        ["decoder", "exact", "2.100 ± 0.248 (3)", "-", "-", "-"],
        ["diffusion", "bound", "≤ 2.667 ± 0.517 (3)", "0.0200", "0.567 ± 0.287", "1.269 ± 0.107"],
    ]
    for text in (
        render_tables(frame),
        render_markdown(frame),
        render_page(frame, load_history(study, "gap")),
    ):
        assert "≤ 2.667" in text
        assert "an upper limit of the true gap" in " ".join(text.split())
    assert "diffusion is better" not in render_tables(frame)  # the classes are still not ranked


def test_there_are_none_where_the_baseline_has_no_exact_score_or_the_data_differ(
    study: Path, write_run: Any
) -> None:
    frame = load_study(study, "gap")
    assert gaps(frame.assign(baseline="encoder")).empty
    assert gaps(frame.assign(baseline=None)).empty
    assert gaps(frame.drop(columns="baseline")).empty  # a frame written before there were any
    other = frame["fingerprint"].where(frame["arm"] != "diffusion", "data-2")
    assert gaps(frame.assign(fingerprint=other)).empty
    assert gaps(frame[frame["likelihood"] != "bound"]).empty
