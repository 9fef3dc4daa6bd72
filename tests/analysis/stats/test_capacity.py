"""Capacity on a ladder: by hand, at its ends, of simulated seeds, and from run folders to tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf

from archbench.analysis import compare
from archbench.analysis.comparison import Comparison
from archbench.analysis.load.study import load_study
from archbench.analysis.stats.capacity import (
    Limit,
    capacities,
    capacity_frame,
    capacity_grids,
    capacity_text,
    largest_solved,
    rungs,
)
from archbench.analysis.stats.intervals import share_interval
from archbench.analysis.tables.study_markdown import render_markdown
from archbench.analysis.tables.study_tables import study_tables

LEVELS = [4.0, 8.0, 16.0, 32.0]


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([1.0, 0.98, 0.70, 0.20], "9.75"),  # 8 * 2^(0.08 / 0.28)
        ([1.0, 0.95, 0.85, 0.20], "11.3"),  # half of an octave above 8
        ([1.0, 0.90, 0.40, 0.20], "8"),
        ([1.0, 0.80, 0.94, 0.86], "22.6"),  # the largest, though 8 is not solved
        ([0.89, 0.80, 0.40, 0.20], "below 4"),
        ([1.0, 1.0, 0.95, 0.90], "at least 32"),
    ],
)
def test_the_largest_difficulty_by_hand(accuracies: list[float], expected: str) -> None:
    assert str(largest_solved(LEVELS, accuracies, 0.9)) == expected


def ladder(scores: dict[str, list[list[float]]], items: float = 1e9, level: float = 0.9) -> pd.DataFrame:
    """The rows of a ladder, from the accuracies of the seeds of each model at each of ``LEVELS``."""
    rows: list[dict[str, Any]] = []
    for model, by_rung in scores.items():
        for difficulty, seeds in zip(LEVELS, by_rung, strict=False):
            low, high = share_interval(seeds, items)
            rows.append({
                "ladder": "recall", "scale": "nano", "unit": "pairs", "level": level, "model": model,
                "difficulty": difficulty, "score": float(np.mean(seeds)), "low": low, "high": high,
                "seeds": len(seeds), "state_bytes": 4096.0, "reference": 0.1,
            })  # fmt: skip
    return pd.DataFrame(rows)


def test_the_interval_is_that_of_the_ends_of_the_intervals_of_the_accuracies() -> None:
    table = ladder({"mamba": [[1, 1, 1], [0.97, 0.95, 0.96], [0.7, 0.6, 0.5], [0.2, 0.1, 0.3]]})
    (capacity,) = capacities(table)
    low, high = table["low"].tolist(), table["high"].tolist()
    assert capacity.limit.difficulty == pytest.approx(8 * 2 ** (0.06 / 0.36))
    assert capacity.low is not None
    assert capacity.low.difficulty == pytest.approx(8 * 2 ** ((low[1] - 0.9) / (low[1] - low[2])))
    assert capacity.high is not None
    assert capacity.high.difficulty == pytest.approx(8 * 2 ** ((high[1] - 0.9) / (high[1] - high[2])))
    # The intervals are 0.926 to 0.979 at 8, and 0.347 to 0.808 at 16: Student's, of the logit.
    assert capacity_text(capacity) == "8.98 [8.26, 11]"


def test_ends_of_the_ladder_are_bounds_and_order_models() -> None:
    table = ladder({
        "weak": [[0.5, 0.6], [0.3, 0.3], [0.1, 0.1], [0.1, 0.1]],
        "middle": [[0.95, 0.97], [0.5, 0.52], [0.1, 0.1], [0.1, 0.1]],
        "strong": [[1, 1], [1, 1], [1, 1], [0.99, 0.98]],
    })  # fmt: skip
    found = capacities(table)
    assert [capacity.model for capacity in found] == ["strong", "middle", "weak"]
    assert found[0].limit == Limit(difficulty=32, bound="at least")
    assert found[2].limit == Limit(difficulty=4, bound="below")
    assert capacity_text(found[2]).startswith("below 4 [below 4, ")


def test_one_seed_has_no_interval() -> None:
    (capacity,) = capacities(ladder({"mamba": [[1.0], [0.5], [0.2], [0.1]]}))
    assert (capacity.low, capacity.high) == (None, None)
    assert capacity_text(capacity) == "4.59"


@pytest.mark.parametrize("seeds", [3, 5])
def test_intervals_of_simulated_seeds_contain_the_true_capacity(seeds: int) -> None:
    """Logit accuracies that fall by 3 for each octave, with a deviation of 0.7 between seeds."""
    rng, contained, replicates = np.random.default_rng(0), 0, 400
    true_logits = np.log(9) + 3 * (np.log2(11) - np.log2(LEVELS))  # 90% at 11
    many_logits = rng.normal(true_logits[:, None], 0.7, size=(4, 200_000))
    truth = largest_solved(LEVELS, (1 / (1 + np.exp(-many_logits))).mean(1).tolist(), 0.9).difficulty
    for _ in range(replicates):
        logits = rng.normal(true_logits[:, None], 0.7, size=(4, seeds))
        (capacity,) = capacities(ladder({"m": (1 / (1 + np.exp(-logits))).tolist()}))
        assert capacity.low is not None
        assert capacity.high is not None
        above_low = capacity.low.bound == "below" or capacity.low.difficulty <= truth
        contained += above_low and (capacity.high.bound == "at least" or truth <= capacity.high.difficulty)
    assert contained / replicates >= 0.93


SCORES = {
    "decoder": {4: 1.0, 8: 1.0, 16: 0.95},
    "mamba": {4: 0.98, 8: 0.7, 16: 0.3},
}


@pytest.fixture
def study(write_run: Any, tmp_path: Path) -> Path:
    for backbone, scores in SCORES.items():
        for pairs, score in scores.items():
            for seed in range(3):
                diverged = (backbone, pairs, seed) == ("mamba", 16, 2)
                folder = write_run(
                    backbone, seed, None if diverged else score - seed / 1000, task="recall",
                    study="capacity", likelihood=None, digest=f"{pairs:08x}", fingerprint=f"data-{pairs}",
                    status="diverged" if diverged else "complete",
                    state_bytes=4096 if backbone == "mamba" else 2**20,
                )  # fmt: skip
                place = {"name": "recall", "difficulty": pairs, "unit": "pairs"}
                config = {"study": {"ladder": place, "solved": 0.9}, "task": {"num_pairs": pairs}}
                OmegaConf.save(config, folder / "config.yaml")
    return tmp_path / "runs"


def test_rungs_of_run_folders(study: Path) -> None:
    table = rungs(load_study(study, "capacity"))
    assert table[["model", "difficulty", "seeds"]].to_numpy().tolist() == [
        [backbone, pairs, 3] for backbone in SCORES for pairs in (4, 8, 16)
    ]
    last = table.iloc[-1]
    assert last["score"] == pytest.approx((0.3 + 0.299) / 3)  # a run that diverged counts as 0
    assert (last["unit"], last["level"], last["state_bytes"]) == ("pairs", 0.9, 4096)
    assert last["reference"] == pytest.approx(0.03125)


def test_compare_writes_the_capacities(study: Path) -> None:
    assert compare.main(["study=capacity", f"runs={study}"]) == 0
    folder = study / "capacity" / "analysis"
    table = pd.read_csv(folder / "capacity.csv", comment="#").set_index("model")
    assert table.loc["decoder", ["capacity", "capacity_bound"]].tolist() == [16, "at least"]
    assert table.loc["mamba", "capacity"] == pytest.approx(4 * 2 ** (0.079 / 0.28), rel=1e-6)
    assert (folder / "capacity_recall.svg").read_text().startswith("<?xml")
    assert (folder / "capacity_recall.png").stat().st_size > 1000
    assert "largest difficulty at an accuracy of 0.9" in (folder / "compare.html").read_text()
    assert "at least 16" in (folder / "table.md").read_text()


def test_a_study_without_ladder_has_no_capacities(write_run: Any, tmp_path: Path) -> None:
    write_run("decoder", 0)
    frame = load_study(tmp_path / "runs", "compare")
    assert rungs(frame).empty
    assert capacity_frame(rungs(frame)).empty
    assert capacity_grids(rungs(frame)) == []
    assert "Capacity" not in render_markdown(study_tables(Comparison(frame)))
    assert rungs(frame.drop(columns="ladder")).empty  # a frame that was stored before there were ladders
