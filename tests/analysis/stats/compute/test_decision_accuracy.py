"""Decision accuracy of smaller budgets, with scores whose order and noise are given."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from archbench.analysis.load.study import load_study
from archbench.analysis.stats.compute.decision_accuracy import decision_accuracy, signal_to_noise
from archbench.analysis.tables.decision_accuracy import decision_grids
from tests.analysis.conftest import WriteRun

FLOPS = {"small": 1e10, "large": 1e11}
NOISE = (0.0, 0.01, -0.01)
"""Of three seeds; their standard deviation is 0.01."""
LARGE = {"decoder": 2.0, "mamba": 1.8, "s4": 1.79}
"""Of the three pairs mamba and s4 is undecided."""


def study(write_run: WriteRun, tmp_path: Path, small: dict[str, float]) -> pd.DataFrame:
    """Return three seeds of three models at two budgets."""
    for digest, scores in {"small": small, "large": LARGE}.items():
        for model, score in scores.items():
            for seed, noise in enumerate(NOISE):
                write_run(model, seed, score + (noise if model != "s4" else -noise), digest=digest)
    frame = load_study(tmp_path / "runs", "compare")
    return frame.assign(
        scale=frame["digest"], training_flops=frame["digest"].map(FLOPS), baseline="decoder", protocol="1.0"
    )


def test_pairs_with_the_order_of_the_largest_budget_are_counted(write_run: WriteRun, tmp_path: Path) -> None:
    """Mamba and S4 swap places, and at the small budget S4 is no better than the decoder."""
    table = decision_accuracy(study(write_run, tmp_path, {"decoder": 3.0, "mamba": 2.5, "s4": 2.99}))
    small, large = table.iloc[0], table.iloc[1]
    assert (small["scale"], small["flops"], small["pairs"]) == ("small", 1e10, 3)
    assert small["accuracy"] == pytest.approx(2 / 3)
    assert (small["decided"], small["same"], small["reversed"], small["undecided"]) == (2, 1, 0, 1)
    assert math.isnan(large["accuracy"])
    assert large["signal_to_noise"] == pytest.approx(0.21 / 0.01)


def test_a_reversed_order_is_no_agreement(write_run: WriteRun, tmp_path: Path) -> None:
    table = decision_accuracy(study(write_run, tmp_path, {"decoder": 2.5, "mamba": 3.0, "s4": 3.5}))
    assert table.iloc[0]["accuracy"] == 0
    assert table.iloc[0]["reversed"] == 2
    [grid] = decision_grids(table)
    assert grid.rows[0] == ["1e10", "3", "0% of 3", "2", "0", "2", "0", "100"]
    assert grid.rows[1][2:7] == ["-"] * 5


def test_a_larger_budget_of_the_baseline_alone_is_left_out(write_run: WriteRun, tmp_path: Path) -> None:
    frame = study(write_run, tmp_path, LARGE)
    alone = frame[(frame["backbone"] == "decoder") & (frame["scale"] == "large")]
    more = pd.concat([frame, alone.assign(scale="larger", training_flops=1e12)])
    pd.testing.assert_frame_equal(decision_accuracy(more), decision_accuracy(frame))


def test_one_budget_or_two_models_predict_nothing(write_run: WriteRun, tmp_path: Path) -> None:
    frame = study(write_run, tmp_path, LARGE)
    assert decision_accuracy(frame[frame["scale"] == "large"]).empty
    assert decision_accuracy(frame[frame["backbone"] != "s4"]).empty
    assert decision_accuracy(frame.assign(training_flops=1e10)).empty


def test_signal_to_noise_needs_repeated_seeds(write_run: WriteRun, tmp_path: Path) -> None:
    frame = study(write_run, tmp_path, LARGE)
    assert math.isnan(signal_to_noise(frame[(frame["seed"] == 0) & (frame["scale"] == "large")]))
