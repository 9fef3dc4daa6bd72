"""The tables of docs/results/diffusion.md are what the frames beside it hold."""

from __future__ import annotations

import math
import re

import pandas as pd
import pytest

from analysis.stats.against_variable import against_grid, against_scores
from analysis.stats.arms import arm_table
from analysis.stats.likelihood_gap import gap_grid, gaps
from analysis.tables.columns import score_text
from tests import ROOT

RESULTS = ROOT / "docs" / "results"
PAGE = (RESULTS / "diffusion.md").read_text()
OURS = {"blocks of 4": "block_length=4", "blocks of 16": "block_length=16", "MDLM": "diffusion"}
"""How the names of our arms end, by those of the published ones."""


def frame(study: str) -> pd.DataFrame:
    found = pd.read_parquet(RESULTS / f"{study}.parquet")
    assert (found["status"] == "complete").all()
    return found


def section(study: str) -> str:
    found = PAGE.split("\n## ")
    (text,) = [part for part in found if f"python -m experiments.train study={study}\n" in part]
    return text


def test_gaps_are_those_of_the_frame_and_begin_the_rows_of_the_table() -> None:
    rows = gap_grid(gaps(frame("diffusion_gap")))[1]
    assert len(rows) == 4
    for row in rows:
        assert f"| {' | '.join(row)} | " in section("diffusion_gap")


def test_published_ratios_are_those_of_the_published_numbers() -> None:
    """Perplexities are compared by their logarithms, bits per character as they are."""
    rows = re.findall(r"^- (.*?), (perplexity|bits per character): AR ([\d.]+); (.*)\.$", PAGE, re.MULTILINE)
    assert len(rows) == 4
    table = [line.split(" | ") for line in section("diffusion_gap").splitlines() if line.startswith("| ")]
    head = [cell.strip("| ") for cell in table[0]]
    for name, unit, exact, rest in rows:
        for arm, value, ratio in re.findall(r"([\w ]+) <= ([\d.]+) \(ratio ([\d.]+)\)", rest):
            bits = [math.log(float(x)) if unit == "perplexity" else float(x) for x in (value, exact)]
            assert float(ratio) == round(bits[0] / bits[1], 3), (name, arm)
            column = head.index(max((cell for cell in head if cell and name.startswith(cell)), key=len))
            ours = OURS[arm.strip()]
            (line,) = [row for row in table[1:] if row[0].strip("| ").endswith(ours)]
            assert line[column].strip("| ") == ratio


def test_scores_by_epochs_are_those_of_the_frame_and_have_a_figure() -> None:
    found = frame("epochs")
    head, rows = against_grid(against_scores(found))
    for row in (head, *rows):
        assert f"| {' | '.join(row)} |" in section("epochs")
    assert len(rows) == 3
    figure = (RESULTS / "epochs.svg").read_text()
    assert all(name in figure for name in head[1:])
    assert "](epochs.svg)" in section("epochs")


def test_accuracies_of_all_tasks_stand_in_one_table() -> None:
    table = arm_table(frame("infilling"))
    tasks = ("recall", "infilling", "infilling_suffix_first")
    arms = table[table["kind"] == "arm"]
    assert set(arms["task"]) == set(tasks)
    for arm, rows in arms.groupby("arm"):
        scores = rows.set_index("task")
        cells = [score_text(scores.loc[task]) if task in scores.index else "-" for task in tasks]
        assert f"| {arm} | {' | '.join(cells)} |" in section("infilling")


@pytest.mark.parametrize("study", ["diffusion_gap", "epochs", "infilling"])
def test_commits_and_runs_are_named(study: str) -> None:
    found, words = frame(study), " ".join(section(study).split())
    assert f"{len(found)} runs" in words
    assert all(commit[:7] in words for commit in found["git_commit"].unique())


def test_nothing_is_left_to_be_written() -> None:
    assert "<<<" not in PAGE
