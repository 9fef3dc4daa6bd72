"""The runs that a study asks of a model, and the overrides that choose it."""

from __future__ import annotations

import pandas as pd
import pytest

from archbench.analysis.submission.study import StudyRules, read_study, trial_problems
from archbench.experiments.runtime.errors import ConfigError


def trials(*losses: tuple[float, float], protocol: str | None = None) -> pd.DataFrame:
    """The tuning runs of a model by learning rate and loss, as ``rate_table`` returns them."""
    names = {
        "task": "text",
        "scale": "nano",
        "axis": "flops",
        "target": 1.0,
        "backbone": "mamba",
        "batch_size": 4.0,
    }
    rows = [
        {**names, "learning_rate": rate, "validation": loss, "seed": 100, "metric": "loss", "totals": None}
        for rate, loss in losses
    ]
    return pd.DataFrame(rows).assign(direction="lower", protocol=protocol)


def rules(*learning_rates: float, fixed_grid: bool) -> StudyRules:
    return StudyRules(
        study="toy", folder="toy", rates_folder="toy_rates", swept={}, learning_rates=list(learning_rates),
        fixed_grid=fixed_grid, search_path=[],
    )  # fmt: skip


def test_a_search_has_the_trials_that_follow_from_its_results() -> None:
    grid = rules(0.003, 0.01, fixed_grid=False)
    extended = ((0.003, 2.0), (0.01, 1.0), (0.03, 1.5))
    assert list(trial_problems(grid, trials(*extended))) == []
    (problem,) = trial_problems(grid, trials(*extended, (0.1, 0.5)))
    assert "learning rate 0.1 is one trial more" in problem
    (problem,) = trial_problems(grid, trials(*extended[:2]))
    assert "learning rate 0.03 was not tried" in problem
    (problem,) = trial_problems(rules(0.003, 0.01, fixed_grid=True), trials(*extended))
    assert "learning rate 0.03 is one trial more" in problem


def test_a_submission_changes_the_model_only() -> None:
    study = read_study("compare")
    assert list(study.check(["backbone=kda", "backbone.d_state=8", "task=recall_8_pairs"])) == []
    assert list(study.check(["task=pairs"])) == ["task=pairs is not swept by study=compare"]
    assert "backbonne=x: a submission sets" in next(study.check(["backbonne=x"]))
    assert "sweeps variant" in next(read_study("laptop").check(["backbone=kda"]))
    with pytest.raises(ConfigError, match="there is no conf/study/none"):
        read_study("none")
