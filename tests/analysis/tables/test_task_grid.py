from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from archbench.analysis.load.study import load_study
from archbench.analysis.tables.task_grid import grid_text, task_grid

WriteRun = Callable[..., Path]


@pytest.fixture
def runs(tmp_path: Path, write_run: WriteRun) -> Path:
    """On recall (any value: 0.031) a decoder that solves it twice in three, and a Mamba that never does."""
    shared = {"study": "probes", "task": "recall", "likelihood": None}
    for seed, score in enumerate((1.0, 0.97, 0.5)):
        write_run("decoder", seed, score, **shared)
    for seed in range(2):
        write_run("mamba", seed, 0.03, **shared)
    write_run("mamba", 2, None, status="diverged", message="nan", **shared)
    write_run("s4", 0, None, killed=True, **shared)
    write_run("s4", 1, 0.99, **shared)
    write_run("decoder", 0, 2.4, study="probes")  # bits per byte are no accuracy
    return tmp_path / "runs"


def test_means_rates_and_the_best_guess_stand_side_by_side(runs: Path) -> None:
    table = task_grid(load_study(runs, "probes")).set_index("arm")
    assert set(table["task"]) == {"recall"}
    assert table.loc["decoder", "score"] == pytest.approx((1.0 + 0.97 + 0.5) / 3)
    assert (table.loc["decoder", "solved"], table.loc["decoder", "runs"]) == (2, 3)
    assert set(table["shallow"]) == {"any value"}
    assert set(table["shallow_score"]) == {0.03125}


def test_a_diverged_run_counts_as_zero_and_an_unfinished_one_not_at_all(runs: Path) -> None:
    table = task_grid(load_study(runs, "probes")).set_index("arm")
    assert table.loc["mamba", "score"] == pytest.approx(0.02)
    assert (table.loc["mamba", "runs"], table.loc["s4", "runs"]) == (3, 1)


def test_what_a_study_calls_solved_is_kept(runs: Path) -> None:
    frame = load_study(runs, "probes").assign(solved=0.98)
    assert task_grid(frame).set_index("arm").loc["decoder", "solved"] == 1


def test_tasks_of_which_runs_saw_different_data_are_left_out(runs: Path, write_run: WriteRun) -> None:
    write_run("s4", 2, 0.99, study="probes", task="recall", likelihood=None, fingerprint="data-2")
    assert task_grid(load_study(runs, "probes")).empty


def test_a_mean_below_the_best_guess_is_in_brackets(runs: Path) -> None:
    head, body = grid_text(task_grid(load_study(runs, "probes")))
    cells = dict(zip(head, body[0], strict=True))
    assert cells["best reference"] == "0.031 any value"
    assert cells["decoder"] == "0.823 2/3"
    assert cells["mamba"] == "(0.020) 0/3"
    assert dict(zip(head, body[-1], strict=True))["s4"] == "1 of 1"
