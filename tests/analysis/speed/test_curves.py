from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from archbench.analysis.figures.style import PALETTE
from archbench.analysis.speed.curves import roof_notes, roofline_grid, speed_curves, with_roof
from archbench.analysis.speed.rows import extremes


def cell(backbone: str, context: int, batch: int = 1, mode: str = "decode", **changes: Any) -> dict[str, Any]:
    """100 tokens a second; memory allows 400 (20 bytes a token), products 1,000 (8 FLOPs a token)."""
    return {
        "backbone": backbone, "mode": mode, "context": context, "batch_size": batch,
        "batch_choice": "given", "tokens_per_step": None, "memory_limit_bytes": None,
        "tokens": batch, "tokens_per_second": 100.0 * batch, "flops": 8.0 * batch,
        "matmul_flops_per_second": 8000.0, "least_bytes": 20.0, "memory_bytes_per_second": 8000.0,
    } | changes  # fmt: skip


def test_the_roof_is_the_slower_of_products_and_memory() -> None:
    one, eight = cell("s4", 512), cell("s4", 512, batch=8)
    found = with_roof(pd.DataFrame([one, eight]))
    assert found["roof"].tolist() == pytest.approx([400.0, 1000.0])  # eight at once share the weights
    assert found["share"].tolist() == pytest.approx([0.25, 0.8])


def test_a_roof_is_blank_where_unknown_and_never_below_what_was_reached() -> None:
    rows = pd.DataFrame(
        [
            cell("s4", 512),
            cell("s4", 1024, memory_bytes_per_second=math.nan),
            cell("s4", 2048, tokens_per_second=401.0),
        ]
    )
    found = with_roof(rows)
    assert found["roof"].isna().tolist() == found["share"].isna().tolist() == [False, True, True]
    assert [row[-1] for row in roofline_grid(rows).rows] == ["-"]
    disturbed, unknown = roof_notes(rows)
    assert disturbed.startswith("1 of 3 measurements exceed their roofline")
    assert unknown.startswith("1 of 3 measurements lack a memory bandwidth")
    unknown_rate = rows.assign(memory_bytes_per_second=math.nan)
    assert with_roof(unknown_rate)["roof"].isna().all()
    assert len(speed_curves(unknown_rate).data) == 1  # type: ignore[union-attr]
    assert roof_notes(pd.DataFrame([cell("s4", 512)])) == []


def test_panels_are_modes_by_one_and_the_most_sequences() -> None:
    rows = pd.DataFrame(
        [
            cell(backbone, context, batch, mode)
            for mode, batches in (("train", (8,)), ("prefill", (1, 4, 8)), ("decode", (1, 4, 8)))
            for batch in batches
            for backbone in ("decoder", "s4")
            for context in (512, 2048)
        ]
    )
    assert set(extremes(rows)["batch_size"]) == {1, 8}
    figure = speed_curves(rows)
    assert figure is not None
    assert [a.text for a in figure.layout.annotations] == [
        "train, 8 sequences", "prefill, one sequence", "prefill, 8 sequences", "decode, one sequence",
        "decode, 8 sequences",
    ]  # fmt: skip
    lines = [t for t in figure.data if t.xaxis == "x4"]
    assert [(t.name, t.line.color, t.line.dash) for t in lines] == [
        ("decoder", PALETTE[0], None), ("decoder", PALETTE[0], "dot"),
        ("s4", PALETTE[2], None), ("s4", PALETTE[2], "dot"),
    ]  # fmt: skip
    assert lines[1].y == (400.0, 400.0)
    assert lines[0].customdata == (", 25.0% of its roofline",) * 2
    assert sum(t.showlegend is not False for t in figure.data) == 2
    assert roofline_grid(rows).rows[0] == ["decoder", "train, 8 at once", "2,048", "800", "1k", "80.0%"]
