from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.matplotlib_export import printed
from archbench.analysis.figures.scores import final_scores, forest
from archbench.analysis.load.study import load_study


def test_scores_are_those_of_the_frame(study: Path) -> None:
    frame = load_study(study, "compare")
    figure = final_scores(Comparison(frame))
    assert figure is not None
    seeds, mean = (t for t in figure.data if t.name == "mamba" and t.xaxis == "x2")
    scores = frame[(frame["task"] == "text") & (frame["arm"] == "mamba")]["score"]
    assert list(seeds.x) == scores.tolist()
    assert mean.x[0] == pytest.approx(scores.mean())
    assert mean.error_x.array[0] == pytest.approx(4.3027 * scores.std() / 3**0.5, rel=1e-4)
    assert mean.y == ("mamba, exact",)


def test_a_task_that_all_seeds_solve_can_be_printed(write_run: Any, tmp_path: Path) -> None:
    """The interval of their mean, 1, ends below it: a bar of negative length, which Matplotlib refuses."""
    for seed in range(3):
        write_run("mamba", seed, 1.0, task="recall", likelihood=None)
    figure = final_scores(Comparison(load_study(tmp_path / "runs", "compare")))
    assert figure is not None
    assert b"mamba" in printed(figure, "svg")


def test_one_seed_has_no_bar_and_failures_no_point(study: Path) -> None:
    figure = final_scores(Comparison(load_study(study, "compare")))
    assert figure is not None
    moe = [t for t in figure.data if t.name == "moe"]
    assert moe[-1].error_x.array is None
    assert not [t for t in figure.data if t.name == "s4" and t.xaxis == "x"]


def test_arms_of_a_forest_stand_apart_around_their_task(study: Path) -> None:
    gains = pd.DataFrame(
        [
            {"task": task, "scale": "nano", "arm": arm, "gain": 0.1, "low": -0.1, "high": 0.3}
            for task in ("text", "recall")
            for arm in ("s4", "mamba")
        ]
    )
    comparison = Comparison(load_study(study, "compare"))
    vars(comparison)["gains"] = gains  # in place of those that would be computed
    figure = forest(comparison)
    assert figure is not None
    assert figure.layout.yaxis.ticktext == ("text, nano", "recall, nano")
    assert figure.layout.yaxis.tickvals == (0, 1)
    assert {t.name: t.y for t in figure.data} == {"mamba": (-0.2, 0.8), "s4": (0.2, 1.2)}
    assert figure.layout.yaxis.range == (1.5, -0.5)  # the first task on top
