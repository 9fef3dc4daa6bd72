from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from archbench.analysis.compare import main
from archbench.analysis.comparison import Comparison
from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.stats.targets.steps_to_loss import first_reached, steps_grid, with_steps
from archbench.analysis.tables.study_tables import study_tables
from archbench.analysis.tables.terminal import render_tables


def curve(*values: float) -> pd.DataFrame:
    """A curve with a point each 10 steps."""
    steps = [10.0 * (i + 1) for i in range(len(values))]
    return pd.DataFrame(
        {"step": steps, "tokens": [s * 100 for s in steps], "flops": [s * 1e6 for s in steps],
         "seconds": [s / 10 for s in steps], "value": values}
    )  # fmt: skip


def test_the_place_is_on_the_line_between_two_evaluations() -> None:
    found = first_reached(curve(4.0, 3.0, 2.0, 1.0), 2.75, "lower")
    assert found == {"step": 22.5, "tokens": 2250.0, "flops": 22.5e6, "seconds": 2.25}
    assert first_reached(curve(0.0, 0.5, 1.0), 0.75, "higher")["step"] == 25


def test_it_is_the_first_time_and_the_first_point_where_that_is_good_enough() -> None:
    assert first_reached(curve(4.0, 2.0, 3.0, 1.0), 3.0, "lower")["step"] == 15
    assert first_reached(curve(2.0, 1.0), 2.5, "lower")["step"] == 10
    assert first_reached(curve(4.0, 3.0), 2.0, "lower") == {}


def asks(folder: Path, arm: str) -> None:
    (folder / "config.yaml").write_text(f"study: {{name: compare, steps_to: {arm}}}\nbackbone: {{}}\n")


@pytest.fixture
def raced(write_run: Callable[..., Path], tmp_path: Path) -> Path:
    """Curves are score x (1 + 1/step) at steps 10 to 50, so dense ends at score x 1.02."""
    for seed in (0, 1):
        asks(write_run("dense", seed, 2.0), "dense")
        asks(write_run("fast", seed, 1.9), "dense")
        asks(write_run("slow", seed, 2.5), "dense")
        asks(write_run("uneven", seed, 1.9 if seed else 2.5), "dense")
    asks(write_run("lone", 2, 1.0), "dense")
    return tmp_path / "runs"


def test_every_arm_is_in_the_table_and_one_that_misses_the_score_says_so(raced: Path) -> None:
    frame = with_steps(load_study(raced, "compare"), load_history(raced, "compare"))
    grid = steps_grid(frame, *frame[["task", "scale"]].iloc[0])
    title, head, rows = grid.title, grid.head, grid.rows
    assert "final validation score of dense" in title
    table = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    assert set(table) == {"dense", "fast", "slow", "uneven", "lone"}
    # fast: 1.9 x 1.1 = 2.09 at step 10 and 1.9 x 1.05 = 1.995 at 20; 2.04 lies between them.
    step = 10 + 10 * (2.09 - 2.04) / (2.09 - 1.995)
    assert table["fast"]["steps, by seed"] == f"{step:.0f}, {step:.0f}"
    assert table["fast"]["times fewer tokens (n)"] == f"{50 / step:.2f} ± 0.00 (2)"
    assert table["fast"]["target"] == "2.0400"
    assert table["dense"]["times fewer FLOPs (n)"] == "1.00 ± 0.00 (2)"
    assert table["slow"]["steps, by seed"] == "not reached"
    assert table["slow"]["times fewer tokens (n)"] == "not reached (0 of 2)"
    assert table["uneven"]["times fewer tokens (n)"] == "not reached (1 of 2)"
    assert table["lone"]["steps, by seed"] == "no complete run of dense"
    assert math.isnan(frame[frame["arm"] == "slow"]["reach_tokens"].iloc[0])


def test_all_outputs_show_it_and_a_study_that_does_not_ask_has_none(raced: Path) -> None:
    assert "not reached" not in render_tables(study_tables(Comparison(load_study(raced, "compare"))))
    assert main([f"runs={raced}"]) == 0
    folder = raced / "compare" / "analysis"
    for name in ("table.md", "compare.html"):
        assert "not reached (1 of 2)" in (folder / name).read_text()
    frame = with_steps(load_study(raced, "compare"), load_history(raced, "compare"))
    written = pd.read_parquet(folder / "results.parquet")
    assert "not reached (1 of" in render_tables(
        study_tables(Comparison(written))
    )  # the rest may be on the next line of its cell
    assert render_tables(study_tables(Comparison(written))) == render_tables(
        study_tables(Comparison(frame))
    ), "the table is a function of the frame on disk"


def test_a_study_that_names_no_arm_of_its_own_is_told_so(
    write_run: Callable[..., Path], tmp_path: Path
) -> None:
    asks(write_run("mamba", 0), "dnse")
    runs = tmp_path / "runs"
    frame = with_steps(load_study(runs, "compare"), load_history(runs, "compare"))
    title = steps_grid(frame, *frame[["task", "scale"]].iloc[0]).title
    assert title.endswith("there is no such arm (arms: mamba)")
