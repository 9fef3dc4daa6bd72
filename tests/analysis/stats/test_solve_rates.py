from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from archbench.analysis.comparison import Comparison
from archbench.analysis.load.study import load_study
from archbench.analysis.stats.solve_rates import solved_grid
from archbench.analysis.tables.study_markdown import render_markdown
from archbench.analysis.tables.study_tables import study_tables


@pytest.fixture
def study(write_run: Any, tmp_path: Path) -> Path:
    """On recall a decoder that solves it under 3 of 4 seeds, and a mamba that never does."""
    for seed, score in enumerate((0.99, 0.95, 1.0, None)):
        fate = {"status": "diverged"} if score is None else {}
        folder = write_run("decoder", seed, score, study="solve", task="recall", **fate)
        OmegaConf.save({"study": {"solved": 0.95}}, folder / "config.yaml")
    for seed, score in enumerate((0.949, 0.2)):
        write_run("mamba", seed, score, study="solve", task="recall")
    write_run("mamba", 2, study="solve", task="recall", killed=True)
    write_run("decoder", 0, 2.0, study="solve")
    return tmp_path / "runs"


def test_seeds_that_solve_it_are_counted(study: Path) -> None:
    frame = load_study(study, "solve")
    # On text there is no accuracy. What its own config says does not matter: the study asks.
    frame["solved"] = 0.95
    rows = Comparison(frame).solve_rates.set_index("arm")
    assert set(rows["task"]) == {"recall"}
    assert rows[["solved", "runs"]].to_dict("index") == {
        "decoder": {"solved": 3, "runs": 4}, "mamba": {"solved": 0, "runs": 2},
    }  # fmt: skip
    # Wilson 1927: (2 k + z^2 -+ z sqrt(z^2 + 4 k (1 - k / n))) / (2 (n + z^2)), z = 1.959964.
    assert rows.loc["decoder", "low"] == pytest.approx(0.300642, abs=1e-6)
    assert rows.loc["decoder", "high"] == pytest.approx(0.954413, abs=1e-6)
    assert rows.loc["mamba", "low"] == 0
    assert rows.loc["mamba", "high"] == pytest.approx(0.657620, abs=1e-6)


def test_the_table_stands_below_that_of_the_scores(study: Path) -> None:
    frame = load_study(study, "solve")
    rows = Comparison(frame).solve_rates
    assert solved_grid(rows).title == "Solve rate, recall, nano: share of seeds at 0.95 or more"
    assert solved_grid(rows).rows[0] == ["decoder", "3 of 4", "0.75", "0.30 to 0.95"]
    assert "| decoder | 3 of 4 | 0.75 | 0.30 to 0.95 |" in render_markdown(study_tables(Comparison(frame)))


def test_the_cross_entropy_of_an_answer_stands_beside_the_rate(study: Path) -> None:
    frame = load_study(study, "solve")
    decoder = frame["backbone"].eq("decoder") & frame["score"].lt(1.5)
    frame.loc[decoder, "test_bits_per_answer"] = [0.1, 0.2, 0.3]
    grid = solved_grid(Comparison(frame).solve_rates)
    assert grid.head[-1] == "bits per answer"
    # Student's quantile with two degrees of freedom, 4.3027, times 0.1 / sqrt(3).
    assert [row[-1] for row in grid.rows] == ["0.200 ± 0.248", "-"]
    assert (grid.note or "").startswith("bits per answer: ")


def test_it_is_shown_only_where_a_study_asks(study: Path) -> None:
    frame = load_study(study, "solve")
    assert Comparison(frame.assign(solved=float("nan"))).solve_rates.empty
    assert Comparison(frame.drop(columns="solved")).solve_rates.empty
