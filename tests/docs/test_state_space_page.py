"""The tables of docs/results/state_space.md are what the frames beside it hold."""

from __future__ import annotations

import pandas as pd
import pytest

from analysis.stats.arms import arm_table
from analysis.stats.extra_tests import further_grid, further_scores
from analysis.tables.columns import score_text
from analysis.tables.format import size
from tests import ROOT

RESULTS = ROOT / "docs" / "results"
PAGE = (RESULTS / "state_space.md").read_text().splitlines()


def rows(study: str) -> list[list[str]]:
    """Every row that the page owes its reader."""
    frame = pd.read_parquet(RESULTS / f"{study}.parquet")
    assert (frame["status"] == "complete").all()
    grids = [further_grid(scores)[1] for _, scores in further_scores(frame).groupby("task")]
    if grids:
        return [row for grid in grids for row in grid]
    arms = arm_table(frame).query("kind == 'arm'")
    return [[arm["arm"], score_text(arm), size(arm["state_bytes_2k"])] for _, arm in arms.iterrows()]


@pytest.mark.parametrize("study", ["state_tracking", "induction", "recall_state"])
def test_tables_are_those_of_the_frames(study: str) -> None:
    section = PAGE[PAGE.index(f"    archbench train study={study}") :]
    found = rows(study)
    assert len(found) >= 4
    for row in found:
        assert f"| {' | '.join(row)} |" in section
