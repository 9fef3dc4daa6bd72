"""The tables of docs/results/diffusion.md are what the frames beside it hold."""

from __future__ import annotations

import pandas as pd

from analysis.stats.arms import arm_table
from analysis.tables.columns import score_text
from tests import ROOT

RESULTS = ROOT / "docs" / "results"
PAGE = (RESULTS / "diffusion.md").read_text()


def frame(study: str) -> pd.DataFrame:
    found = pd.read_parquet(RESULTS / f"{study}.parquet")
    assert (found["status"] == "complete").all()
    return found


def test_accuracies_of_all_tasks_stand_in_one_table() -> None:
    table = arm_table(frame("infilling"))
    tasks = ("recall", "infilling", "infilling_suffix_first")
    arms = table[table["kind"] == "arm"]
    assert set(arms["task"]) == set(tasks)
    for arm, rows in arms.groupby("arm"):
        scores = rows.set_index("task")
        cells = [score_text(scores.loc[task]) if task in scores.index else "-" for task in tasks]
        assert f"| {arm} | {' | '.join(cells)} |" in PAGE


def test_commits_and_runs_are_named() -> None:
    found, words = frame("infilling"), " ".join(PAGE.split())
    assert f"{len(found)} runs" in words
    assert all(commit[:7] in words for commit in found["git_commit"].unique())
