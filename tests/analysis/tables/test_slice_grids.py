"""The tables of slices where a gain is not known."""

import pandas as pd
import pytest

from archbench.analysis.tables import slices


def test_an_arm_without_a_gain_is_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gain of a single seed may be unknown; the table is made all the same."""
    rows = [
        {"arm": arm, "score": 1.5, "gain": float("nan"), "item_se": float("nan"), "verdict": ""}
        for arm in ("base", "other")
    ]
    about = {"task": "text", "scale": "nano", "likelihood": "exact", "baseline": "base", "by": "case"}
    table = pd.DataFrame([{**about, "slice": "upper", "share": 0.5, **row} for row in rows])
    monkeypatch.setattr(slices, "slice_sentences", lambda rows: [])
    (grid,) = slices.slice_grids(table)
    head, body = grid.head, grid.rows
    assert head[-1] == "other"
    assert body == [["case", "upper", "50.0%", "1.500", "-"]]
