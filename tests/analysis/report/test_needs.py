"""The needs that an empty part of the report states agree with the contents of the study."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from archbench.analysis.comparison import Comparison
from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.report.needs import needs
from archbench.analysis.report.page import draw
from archbench.analysis.stats.arms import arm_table, ranked

LACKING = re.compile(r"Needs (\d+) (learning rates?|\w+) .*: there (is|are) (\d+|none)")
TYPE = ["task", "scale", "likelihood"]


def empty_parts(runs: Path, study: str = "compare") -> tuple[pd.DataFrame, dict[str, str]]:
    frame, history = load_study(runs, study), load_history(runs, study)
    missing = [
        name for name, figure in draw(Comparison(frame, history)).interactive.items() if figure is None
    ]
    return frame, {name: need.reason for name, need in needs(Comparison(frame, history), missing).items()}


def drawn_study(seed: int, write_run: Any) -> None:
    rng = np.random.default_rng(seed)
    tasks = list(rng.permutation(["text", "recall", "copying", "induction"])[: int(rng.integers(1, 5))])
    for task in tasks:
        for name in [f"m{number}" for number in range(int(rng.integers(1, 4)))]:
            likelihood = str(rng.choice(["exact", "bound"]))
            mean = float(rng.choice([0.02, 0.6])) if task != "text" else float(rng.choice([2.4, 4.9]))
            for number in range(int(rng.integers(1, 5))):
                folder = write_run(
                    name, number, mean + 0.01 * rng.random(), task=task, likelihood=likelihood,
                    killed=bool(rng.random() < 0.15), digest=f"{seed:08x}",
                )  # fmt: skip
                rate = float(rng.choice([0.001, 0.003, 0.01]))
                (folder / "config.yaml").write_text(json.dumps({"optimizer": {"learning_rate": rate}}))


@pytest.mark.parametrize("seed", range(10))
def test_a_need_is_of_more_than_there_is(seed: int, write_run: Any, tmp_path: Path) -> None:
    drawn_study(seed, write_run)
    frame, said = empty_parts(tmp_path / "runs")
    assert all(said.values()), said
    for words in said.values():
        if words.startswith("Needs") and (found := LACKING.search(words)) is not None:
            needed, noun, verb, there = found.groups()
            assert (0 if there == "none" else int(there)) < int(needed), words
            assert (verb == "is") == (there == "1")
            assert noun.endswith("s") == (needed != "1")
    arms = arm_table(frame).query("kind == 'arm'")
    whole = arms[(arms["seeds"] > 0) & (arms["seeds"] == arms["runs"])]
    counts = {
        "pareto_fronts": arms[ranked(arms)].groupby(TYPE, dropna=False).size(),
        "compute_to_target": whole.groupby(TYPE, dropna=False).size(),
        "gains": whole[whole["seeds"] >= 3].groupby(TYPE, dropna=False).size(),
    }
    for name, sizes in counts.items():
        most = int(sizes.max()) if len(sizes) else 0
        if name in said:
            assert ("Needs 2 models" in said[name]) == (most < 2), (name, said[name], most)


def test_three_models_are_not_said_to_be_too_few(write_run: Any, tmp_path: Path) -> None:
    for name, score in (("decoder", 0.02), ("mamba", 0.015), ("s4", 0.01)):
        for seed in range(3):
            write_run(name, seed, score + seed / 1000, task="recall")
    _, said = empty_parts(tmp_path / "runs")
    assert said["pareto_fronts"] == (
        "Needs 2 models of one likelihood type that have learned their task, of known cost: there are none"
    )
    assert said["gains"] == "pairs of which neither model has learned the task are not compared"
    assert said["performance_profiles"].endswith("there is 1")
    assert "2 seeds" not in " ".join(said.values())


def test_a_run_that_was_validated_and_has_no_result_is_not_one_without_validation(
    write_run: Any, tmp_path: Path
) -> None:
    write_run("decoder", 0, killed=True)
    _, said = empty_parts(tmp_path / "runs")
    assert "none has ended" in said["learning_curves"]
