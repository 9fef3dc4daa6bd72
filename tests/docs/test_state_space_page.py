"""The tables of docs/results/state_space.md are what the frames beside it hold."""

from __future__ import annotations

import pandas as pd
import pytest

from archbench.analysis.stats.arms import arm_table
from archbench.analysis.tables.columns import score_text
from archbench.analysis.tables.format import size
from tests.docs import renew_tables

PAGE = renew_tables.RESULTS / "state_space.md"


@pytest.mark.parametrize("study", ["state_tracking", "induction", "recall_state"])
def test_all_runs_are_complete(study: str) -> None:
    assert (renew_tables.frame(study)["status"] == "complete").all()


def test_scores_by_length_are_those_of_the_frames() -> None:
    assert renew_tables.quoted(PAGE) == renew_tables.length_block()
    kept = pd.read_csv(PAGE.with_suffix(".csv"))
    scores = renew_tables.length_scores().reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, scores, check_dtype=False)


def test_recall_by_state_is_that_of_the_frame() -> None:
    arms = arm_table(renew_tables.frame("recall_state")).query("kind == 'arm'")
    assert len(arms) == 4
    for _, arm in arms.iterrows():
        cells = [arm["arm"], score_text(arm), size(arm["state_bytes_2k"])]
        assert f"| {' | '.join(cells)} |" in PAGE.read_text()
