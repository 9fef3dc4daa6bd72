"""What the report shows beside the frame, by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from scipy import stats

from archbench.analysis.comparison import Comparison
from archbench.analysis.load.arm_names import config_differences
from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.stats.arms import arm_table
from archbench.analysis.stats.ranking.ranks import (
    ranks,
)

WriteRun = Callable[..., Path]


def with_curve(folder: Path, values: list[float]) -> None:
    """Replaces a run's validations: after 1, 2, 3 ... units of tokens, FLOPs and seconds."""
    rows = [
        {"kind": "validation", "step": i, "tokens": i, "flops": i, "seconds": i / 2, "bits_per_byte": value}
        for i, value in enumerate(values, start=1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_levels_are_reached_on_straight_lines(write_run: WriteRun, tmp_path: Path) -> None:
    with_curve(write_run("decoder", 0, 2.0), [4.0, 3.0, 2.0])
    with_curve(write_run("mamba", 0, 1.0), [3.0, 1.0])
    (tmp_path / "runs" / "compare").joinpath("x").mkdir()
    for folder in (tmp_path / "runs" / "compare").glob("*-*/s0"):
        (folder / "config.yaml").write_text("study: {baseline: decoder}\n")
    frame, history = load_study(tmp_path / "runs", "compare"), load_history(tmp_path / "runs", "compare")
    found = Comparison(frame, history).levels
    assert sorted(found["level"].unique()) == pytest.approx([2 + i / 4 for i in range(8)])
    mamba = found[found["arm"] == "mamba"].set_index(found[found["arm"] == "mamba"]["level"].round(6))
    # The decoder is at 2 after 3 FLOPs; mamba, half way from 3 to 1, after 1.5.
    assert mamba.loc[2.0, "fewer_flops"] == pytest.approx(3 / 1.5)
    assert mamba.loc[2.0, "fewer_seconds"] == pytest.approx(2.0)
    assert (found[found["arm"] == "decoder"]["fewer_flops"] == 1).all()


def test_a_level_that_a_seed_misses_has_no_row(write_run: WriteRun, tmp_path: Path) -> None:
    with_curve(write_run("decoder", 0, 2.0), [4.0, 2.0])
    with_curve(write_run("mamba", 0, 3.0), [4.0, 3.0])
    frame, history = load_study(tmp_path / "runs", "compare"), load_history(tmp_path / "runs", "compare")
    found = Comparison(frame, history).levels
    assert found[found["arm"] == "mamba"]["level"].min() == pytest.approx(3.0)


def test_places_are_shared_by_what_is_not_separated(study: Path) -> None:
    frame = load_study(study, "compare")
    arms, pairs = arm_table(frame), Comparison(frame).pairs
    here = arms[arms["task"] == "text"]
    found = ranks(here, pairs[pairs["task"] == "text"])
    # decoder and mamba are closer than their noise; both are separated from s4; the others stand alone.
    assert {arm: found[arm] for arm in ("diffusion", "encoder")} == {"diffusion": "1", "encoder": "1"}
    separated = pairs[(pairs["task"] == "text") & pairs["separated"]]
    assert set(zip(separated["model"], separated["other"], strict=True)) == {
        ("decoder", "s4"),
        ("mamba", "s4"),
    }
    assert (found["decoder"], found["mamba"], found["s4"]) == ("1-2", "1-2", "3")
    assert "moe" not in found  # it has missing runs, so nothing is known about it


def test_gains_are_signed_towards_better(write_run: WriteRun, tmp_path: Path) -> None:
    for seed, noise in enumerate((0.0, 0.1, 0.3)):
        write_run("decoder", seed, 2.0 + noise)
        write_run("mamba", seed, 1.9 + noise + seed / 100)
        write_run("decoder", seed, 0.5 + noise, task="recall")
        write_run("mamba", seed, 0.4 + noise + seed / 100, task="recall")
    for folder in (tmp_path / "runs" / "compare").glob("*-*/s0"):
        (folder / "config.yaml").write_text("study: {baseline: decoder}\n")
    gains = Comparison(load_study(tmp_path / "runs", "compare")).gains.set_index("task")
    assert gains.loc["text", "gain"] == pytest.approx(0.09)  # fewer bits are better
    assert gains.loc["recall", "gain"] == pytest.approx(-0.09)
    oracle = stats.ttest_ind([2.0, 2.1, 2.3], [1.9, 2.01, 2.22], equal_var=False).confidence_interval(0.95)
    assert gains.loc["text", ["low", "high"]].tolist() == pytest.approx([oracle.low, oracle.high], rel=1e-4)
    assert gains.loc["text", "verdict"] == "undecided"


def test_configurations_are_shown_where_they_differ(write_run: WriteRun, tmp_path: Path) -> None:
    for backbone, width in (("decoder", 64), ("mamba", 48)):
        folder = write_run(backbone, 0, 2.4)
        (folder / "config.yaml").write_text(
            f"backbone: {{d_model: {width}}}\nbudget: {{tokens: 100}}\nseed: {width}\n"
        )
    [row] = config_differences(load_study(tmp_path / "runs", "compare")).to_dict("records")
    assert (row["setting"], row["decoder"], row["mamba"]) == ("backbone.d_model", 64, 48)
