from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from archbench.analysis.comparison import Comparison
from archbench.analysis.load.study import load_study
from archbench.analysis.stats.arms import arm_table, matched_line


def warned(runs: Path) -> str:
    return "\n".join(Comparison(load_study(runs, "compare")).warnings)


def test_arms_stand_by_class_then_score_and_references_last(study: Path) -> None:
    table = arm_table(load_study(study, "compare"))
    text = table[table["task"] == "text"]
    assert text["arm"].tolist() == [
        "moe", "decoder", "mamba", "s4", "diffusion", "encoder", "unigram entropy", "xz",
    ]  # fmt: skip
    assert text["likelihood"].tolist()[:6] == ["exact"] * 4 + ["bound", "pseudo"]
    recall = table[table["task"] == "recall"]
    assert recall["arm"].tolist() == ["decoder", "mamba", "encoder", "s4", "any value"]


def test_means_are_over_the_runs_that_count(study: Path) -> None:
    frame = load_study(study, "compare")
    table = arm_table(frame).set_index(["task", "arm"])
    scores = frame[(frame["task"] == "text") & (frame["arm"] == "decoder")]["score"]
    decoder = table.loc[("text", "decoder")]
    assert decoder["score"] == pytest.approx(scores.mean())
    assert decoder["half_width"] == pytest.approx(4.3027 * scores.std() / math.sqrt(3), rel=1e-4)
    assert decoder["training_seconds"] == pytest.approx(6.0)
    moe = table.loc[("text", "moe")]
    assert (moe["score"], moe["seeds"], moe["runs"]) == (2.39, 1, 3)
    assert math.isnan(moe["half_width"])
    assert moe["status"] == "incomplete, oom"


def test_pairs_stay_within_a_class(study: Path) -> None:
    frame = load_study(study, "compare")
    pairs = Comparison(frame).pairs
    text = pairs[pairs["task"] == "text"]
    assert set(text["model"]) | set(text["other"]) == {"decoder", "mamba", "s4"}
    recall = pairs[pairs["task"] == "recall"]
    assert {frozenset(p) for p in zip(recall["model"], recall["other"], strict=True)} == {
        frozenset(p) for p in (("decoder", "mamba"), ("decoder", "encoder"), ("mamba", "encoder"))
    }


def test_an_arm_with_a_failure_is_not_compared(study: Path) -> None:
    pairs = Comparison(load_study(study, "compare")).pairs
    assert "moe" not in {*pairs["model"], *pairs["other"]}


def test_noise_is_not_separated(write_run: Any, tmp_path: Path) -> None:
    for seed, value in enumerate(np.random.default_rng(0).normal(2.4, 0.05, (4, 2))):
        write_run("decoder", seed, float(value[0]))
        write_run("mamba", seed, float(value[1]))
    pair = Comparison(load_study(tmp_path / "runs", "compare")).pairs.iloc[0]
    assert not pair["separated"]
    assert pair["detectable"] > pair["difference"]


def test_other_data_is_never_compared(write_run: Any, tmp_path: Path) -> None:
    for seed in range(3):
        write_run("decoder", seed, 2.0 + seed / 100)
        write_run("mamba", seed, 3.0 + seed / 90, fingerprint="data-2")
    assert Comparison(load_study(tmp_path / "runs", "compare")).pairs.empty
    assert "mixed fingerprints" in warned(tmp_path / "runs")


def test_a_clean_study_warns_of_nothing(write_run: Any, tmp_path: Path) -> None:
    for seed in range(3):
        write_run("decoder", seed)
        write_run("mamba", seed)
    frame = load_study(tmp_path / "runs", "compare")
    assert Comparison(frame).warnings == []
    assert matched_line(frame) == "Held equal: body parameters at 200,000; largest mismatch 0.30%."


def test_failures_are_warned_of_with_their_messages(study: Path) -> None:
    text = warned(study)
    assert "s4 is not compared, as runs are missing (seeds 0, 1, 2 diverged: loss is nan at step 40)" in text
    assert "seed 1 oom: asked for 9 GiB, 8 GiB were free" in text
    assert "seed 2 incomplete" in text
    assert "unreadable lines of metrics.jsonl, skipped: 1" in text


@pytest.mark.parametrize(("seeds", "words"), [(1, "one seed"), (2, "two seeds")])
def test_few_seeds_are_warned_of(write_run: Any, tmp_path: Path, seeds: int, words: str) -> None:
    for seed in range(seeds):
        write_run("decoder", seed, 2.0)
        write_run("mamba", seed, 3.0)
    assert f"{words}: no model is called better" in warned(tmp_path / "runs")
    assert not Comparison(load_study(tmp_path / "runs", "compare")).pairs["separated"].any()


def test_an_arm_short_of_seeds_is_named(write_run: Any, tmp_path: Path) -> None:
    for seed in range(3):
        write_run("decoder", seed)
    write_run("mamba", 0)
    assert "fewer than 3 seeds, so not called better: mamba" in warned(tmp_path / "runs")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"commit": "deadbeef", "code": {"experiments": "0"}},
            "mixed commits of the code (c0ffee, deadbeef)",
        ),
        ({"threads": 8}, "mixed thread counts (1, 8)"),
        ({"matched": None}, "3 of 6 complete runs were matched to no budget"),
        ({"matched": {"axis": "training FLOPs", "target": 10**12, "residual": 0.0}}, "different axes"),
        ({"matched": {"axis": "body parameters", "target": 5, "residual": 0.0}}, "different targets"),
        (
            {"matched": {"axis": "body parameters", "target": 200000, "residual": -0.04}},
            "worse than 1%: mamba",
        ),
    ],
)
def test_unequal_conditions_are_warned_of(
    write_run: Any, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    for seed in range(3):
        write_run("decoder", seed)
        write_run("mamba", seed, **change)
    warnings = Comparison(load_study(tmp_path / "runs", "compare")).warnings
    [warning] = [each for each in warnings if "speeds are not shown" not in each]
    assert words in warning
    assert (len(warnings) == 2) == ("threads" in change)


def test_package_versions_are_mixed_where_one_package_has_two(write_run: Any, tmp_path: Path) -> None:
    """A package that only some runs import is recorded only by these, and is not another version."""
    for name, versions in (("mine", {"PyYAML": "6.0", "archbench": "0.2.0"}), ("decoder", {})):
        path = write_run(name, 0) / "provenance.json"
        record = json.loads(path.read_text())
        path.write_text(json.dumps(record | {"versions": record["versions"] | versions}))
    frame = load_study(tmp_path / "runs", "compare")
    assert not [w for w in Comparison(frame).warnings if "package" in w]
    other = (
        frame["versions"].str.replace("2.10", "2.13").where(frame["backbone"] == "mine", frame["versions"])
    )
    [warning] = [w for w in Comparison(frame.assign(versions=other)).warnings if "package" in w]
    assert "mixed package versions (torch 2.10 and 2.13)" in warning


def test_mixed_classes_are_ranked_as_one_where_that_is_allowed(study: Path) -> None:
    frame = load_study(study, "compare").assign(allow_mixed=True)
    table = arm_table(frame)
    text = table[(table["task"] == "text") & (table["kind"] == "arm")]
    assert text["arm"].tolist() == ["encoder", "moe", "decoder", "mamba", "s4", "diffusion"]
    pairs = Comparison(frame).pairs
    mixed = pairs[pairs["task"] == "text"]
    assert set(mixed["likelihood"]) == {"exact, bound, pseudo"}
    assert {frozenset(p) for p in zip(mixed["model"], mixed["other"], strict=True)} == {
        frozenset(p) for p in combinations(["encoder", "decoder", "mamba", "s4", "diffusion"], 2)
    }
    warnings = [w for w in Comparison(frame).warnings if "--allow-mixed" in w]
    assert len(warnings) == 1
    assert "text, nano: likelihood types are ranked against each other (exact, bound" in warnings[0]


def test_allowing_mixed_classes_changes_nothing_where_there_is_one(write_run: Any, tmp_path: Path) -> None:
    for seed in range(3):
        write_run("decoder", seed, 2.0 + seed / 100)
        write_run("mamba", seed, 3.0 + seed / 90)
        write_run("decoder", seed, 0.5, task="recall")
    frame = load_study(tmp_path / "runs", "compare")
    allowed = frame.assign(allow_mixed=True)
    pd.testing.assert_frame_equal(Comparison(allowed).pairs, Comparison(frame).pairs)
    assert Comparison(allowed).warnings == Comparison(frame).warnings


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("score_items", 64.0, "bits_per_byte of exact over different items: 64 and 256"),
        (
            "averaging",
            "macro: x",
            "bits_per_byte of exact over different averagings: macro: x and micro: over bytes",
        ),
        ("metric", "nats", "different metrics of exact, which are not compared: bits_per_byte, nats"),
    ],
)
def test_scores_that_are_not_one_measure_are_warned_about(
    column: str, value: Any, words: str, write_run: Any, tmp_path: Path
) -> None:
    for seed in range(3):
        write_run("decoder", seed)
        write_run("mamba", seed)
        write_run("diffusion", seed, likelihood="bound", objective="masked_diffusion")
    frame = load_study(tmp_path / "runs", "compare")
    frame.loc[frame["arm"] == "mamba", column] = value
    assert [w for w in Comparison(frame).warnings if "different" in w] == [f"text, nano: {words}"]
