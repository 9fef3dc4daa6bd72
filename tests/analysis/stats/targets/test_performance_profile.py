"""The table over tasks: only whole arms on comparable tasks, with divergence as the worst score."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from archbench.analysis.comparison import Comparison
from archbench.analysis.load.study import load_study
from archbench.analysis.stats.targets.performance_profile import across_tasks, task_scores
from archbench.analysis.tables.study_markdown import render_markdown
from archbench.analysis.tables.study_tables import study_tables

TASKS = ("copying", "induction", "recall")


@pytest.fixture
def probes(write_run: Callable[..., Path], tmp_path: Path) -> Path:
    levels = {"decoder": 0.9, "mamba": 0.5, "s4": 0.3}
    for backbone, level in levels.items():
        for shift, task in enumerate(TASKS):
            for seed in range(3):
                if (backbone, task, seed) == ("s4", "recall", 2):
                    write_run(backbone, seed, None, task=task, status="diverged")
                else:
                    write_run(backbone, seed, level + 0.02 * shift + 0.01 * seed, task=task)
    write_run("encoder", 0, 0.99, task="recall")  # not on the other tasks
    for task in TASKS:
        write_run("moe", 0, 0.9, task=task)
    write_run("moe", 1, None, task="recall", status="oom")
    write_run("decoder", 0, 2.4)  # bits per byte are no share
    return tmp_path / "runs"


def test_arms_with_all_tasks_and_no_missing_runs_are_shown(probes: Path) -> None:
    found = task_scores(load_study(probes, "compare"))["nano"]
    assert sorted(found) == ["decoder", "mamba", "s4"]
    assert sorted(found["decoder"]) == sorted(TASKS)


def test_a_diverged_run_counts_as_the_worst(probes: Path) -> None:
    rows = across_tasks(load_study(probes, "compare")).set_index("line")
    assert list(rows.index) == ["decoder", "mamba", "s4"]
    assert rows.loc["s4", "diverged"] == 1
    assert rows.loc["s4", "mean"] == pytest.approx((0.31 + 0.33 + (0.34 + 0.35 + 0) / 3) / 3)
    assert rows.loc["mamba", "improvement"] == 0.0
    assert rows.loc["decoder", "iqm_low"] <= rows.loc["decoder", "iqm"] <= rows.loc["decoder", "iqm_high"]


def test_the_tables_show_it(probes: Path) -> None:
    text = render_markdown(study_tables(Comparison(load_study(probes, "compare"))))
    assert "## Across 3 tasks, nano: shares, higher is better" in text
    assert "| mamba | 0.530 [" in text
    assert "| 0.000 [0.000, 0.000] | 9 | 0 |" in text


def test_two_tasks_are_too_few(write_run: Callable[..., Path], tmp_path: Path) -> None:
    for task in TASKS[:2]:
        write_run("decoder", 0, 0.5, task=task)
    assert across_tasks(load_study(tmp_path / "runs", "compare")).empty
