"""A grid is decided by the validation split alone, over all seeds."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.rates import main
from archbench.analysis.stats.learning_rates.settings_grid import grid_table

SCORES = {1e-3: (2.6, 2.5, 2.7), 3e-3: (2.3, 2.4, 2.2), 1e-2: (2.0, 2.0)}
"""By learning rate, a value for each seed. The last has lost one."""


@pytest.fixture
def runs(tmp_path: Path, write_run: Callable[..., Path]) -> Path:
    for number, (rate, scores) in enumerate(SCORES.items()):
        for seed, score in enumerate(scores):
            folder = write_run("encoder", seed, score, study="grid", digest=f"{number}e")
            (folder / "config.yaml").write_text(yaml.safe_dump({"optimizer": {"learning_rate": rate}}))
    lost = write_run("encoder", 2, None, study="grid", digest="2e", status="diverged", message="loss is nan")
    (lost / "config.yaml").write_text(yaml.safe_dump({"optimizer": {"learning_rate": 1e-2}}))
    return tmp_path / "runs"


def test_the_best_point_of_all_seeds_is_chosen(runs: Path) -> None:
    grid = grid_table(load_study(runs, "grid"), load_history(runs, "grid"))
    assert grid["arm"].tolist() == [f"encoder learning_rate={rate}" for rate in (3e-3, 1e-3, 1e-2)]
    assert grid["chosen"].tolist() == [True, False, False]
    assert grid["missing"].tolist() == [0, 0, 1]
    best = grid.iloc[0]
    assert best["validation"] == pytest.approx(2.3 * (1 + 1 / 50))  # as the last row of each run says
    # By hand: the standard deviation is 0.1, and t with two degrees of freedom is 4.3027.
    assert best["test_half"] == pytest.approx(4.3027 * 0.1 / 3**0.5, rel=1e-4)


def test_only_the_chosen_point_shows_its_test_score(
    runs: Path, write_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(3):  # a second batch size: it is no sweep of learning rates alone
        folder = write_run("encoder", seed, 2.8, study="grid", digest="3e")
        settings = {"optimizer": {"learning_rate": 1e-3}, "budget": {"batch_size": 8}}
        (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    assert main(["study=grid", f"runs={runs}"]) == 0
    out = capsys.readouterr().out
    assert re.search("Warning: text, nano: encoder .*learning_rate=0.01 is not compared", out)
    rows = [line for line in out.splitlines() if line.startswith("encoder batch_size=")]
    assert "2.3000 ± 0.2484" in rows[0]
    assert [row.count("±") for row in rows] == [2, 1, 1, 1]
    assert "2 (1 missing)" in rows[3]


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study=grid", f"runs={tmp_path}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["sutdy=grid"]) == 2
    assert "did you mean 'study='?" in capsys.readouterr().err
