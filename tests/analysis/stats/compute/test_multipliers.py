"""Compute multipliers of a frame: budgets, time, and the part that another model shares."""

from __future__ import annotations

import math
import re

import numpy as np
import pandas as pd
import pytest

from archbench.analysis.comparison import Comparison
from archbench.analysis.stats.compute.multipliers import budgets, compute_multipliers
from archbench.analysis.tables.compute import compute_grids, over_compute

BUDGETS = (1e10, 1e11, 1e12)
SECONDS = {"decoder": 10.0, "decoder_canon": 12.0, "mamba": 20.0, "s4": 20.0}


def loss(flops: float) -> float:
    """The decoder's: one bit for each decade."""
    return 4.0 - math.log10(flops / 1e10)


def study(leads: dict[str, tuple[float, ...]], noise: float = 0.002) -> pd.DataFrame:
    """Runs of three seeds at each budget; ``leads`` over the decoder, in bits per byte."""
    generator = np.random.default_rng(0)
    rows = [
        {
            "task": "text", "likelihood": "exact", "metric": "bits_per_byte", "direction": "lower",
            "scale": f"{flops:.0e}", "backbone": model, "objective": "causal_lm", "arm": model,
            "cell": f"{model}-{flops:.0e}", "digest": "a", "status": "complete", "seed": seed,
            "score": loss(flops) - lead + noise * generator.normal(),
            "training_flops": flops * (1.001 if model == "mamba" else 1.0),
            "training_seconds": SECONDS[model] * flops / 1e10, "baseline": "decoder",
            "explains": "decoder_canon", "fingerprint": "one",
        }
        for model, by_budget in {"decoder": (0.0, 0.0, 0.0), **leads}.items()
        for flops, lead in zip(BUDGETS, by_budget, strict=True)
        for seed in range(3)
    ]  # fmt: skip
    return pd.DataFrame(rows)


LEADS = {"mamba": (0.5, 0.25, 0.0625), "decoder_canon": (0.25, 0.125, 0.03125)}


def test_a_lead_is_the_compute_that_the_baseline_needs_for_it() -> None:
    mamba = compute_multipliers(study(LEADS)).query("model == 'mamba'").reset_index()
    assert mamba["flops"].tolist() == pytest.approx([1.001e10, 1.001e11, 1.001e12])
    assert mamba.loc[0, "multiplier"] == pytest.approx(10**0.5, rel=0.03)
    assert mamba.loc[1, "multiplier"] == pytest.approx(10**0.25, rel=0.03)
    assert mamba.loc[0, "low"] < 10**0.5 < mamba.loc[0, "high"]
    assert mamba.loc[2, "bound"] == "at least"
    assert mamba.loc[2, "multiplier"] == pytest.approx(1.0, rel=0.002)
    assert (mamba["verdict"] == "ahead but shrinking").all()
    assert mamba["slope"].iloc[0] == pytest.approx(-0.25, abs=0.02)


def test_the_time_is_of_the_baselines_curve_over_seconds() -> None:
    """The decoder's seconds grow with the square root of its FLOPs, as larger models compute faster.

    Mamba takes twice the seconds at the same budget. For its score at 1e10 FLOPs the decoder needs 3.16
    times the FLOPs, which take it 1.78 times its seconds, and so 0.89 times those of Mamba.
    """
    frame = study(LEADS)
    factor = np.where(frame["arm"] == "mamba", 2.0, 1.0)
    frame["training_seconds"] = factor * 10 * np.sqrt(frame["training_flops"] / 1e10)
    mamba = compute_multipliers(frame).query("model == 'mamba'").reset_index()
    assert mamba.loc[0, "time_multiplier"] == pytest.approx(10**0.25 / 2, rel=0.03)
    assert mamba["time_bound"].tolist() == ["", "", "at least"]


def test_speeds_of_disturbed_runs_give_no_multiplier_in_time() -> None:
    """One seed of one model takes twice the time of the others: other work ran beside the study."""
    frame = study(LEADS).assign(study="text", training_tokens_per_second=1000.0)
    assert compute_multipliers(frame)["time_multiplier"].notna().all()
    frame.loc[0, "training_tokens_per_second"] = 500.0
    assert compute_multipliers(frame)["time_multiplier"].isna().all()
    (grid,) = compute_grids(compute_multipliers(frame), "decoder_canon")
    assert "multiplier in time" not in grid.head


def test_the_baseline_with_a_part_has_a_part_of_the_lead() -> None:
    rows = compute_multipliers(study(LEADS))
    mamba = rows[rows["model"] == "mamba"]
    assert mamba["shared"].tolist() == pytest.approx([0.5] * 3, abs=0.06)
    assert (mamba["shared_low"] < 0.5).all()
    assert (mamba["shared_high"] > 0.5).all()
    assert rows.loc[rows["model"] == "decoder_canon", "shared"].isna().all()


def test_of_no_lead_nothing_is_shared() -> None:
    rows = compute_multipliers(study({"mamba": (-0.1, 0.0, 0.0), "decoder_canon": (0.1, 0.1, 0.1)}))
    assert rows.loc[rows["model"] == "mamba", "shared"].isna().sum() >= 1
    assert math.isnan(rows[rows["model"] == "mamba"].iloc[0]["shared"])


def test_a_part_of_a_lead_is_given_at_the_largest_budget_of_each_model() -> None:
    frame = study({**LEADS, "s4": (0.4, 0.2, 0.1)})
    frame = frame[(frame["arm"] != "s4") | (frame["scale"] != "1e+12")]
    (sentence,) = over_compute(Comparison(frame))
    assert re.search(
        r"decoder_canon has \S+ \[.*?\] of the lead of mamba at 1e12 FLOPs, "
        r"and \S+ \[.*?\] of the lead of s4 at 1e11 FLOPs\.$",
        sentence,
    )


def test_runs_on_different_data_have_none() -> None:
    frame = study(LEADS)
    assert compute_multipliers(frame.assign(fingerprint=frame["arm"])).empty


def test_a_study_with_one_budget_has_none() -> None:
    frame = study(LEADS)
    assert compute_multipliers(frame[frame["scale"] == "1e+10"]).empty
    assert compute_multipliers(frame.assign(baseline=None)).empty
    assert compute_multipliers(frame.assign(direction="higher")).empty


def test_runs_whose_flops_differ_by_rounding_are_one_budget() -> None:
    frame = study({})
    frame["training_flops"] *= np.linspace(1.0, 1.01, len(frame))
    assert [len(budget.scores) for budget in budgets(frame)] == [3, 3, 3]


def test_an_unfinished_budget_is_left_out() -> None:
    frame = study(LEADS)
    frame.loc[(frame["arm"] == "mamba") & (frame["scale"] == "1e+12"), "status"] = "incomplete"
    assert compute_multipliers(frame).query("model == 'mamba'")["flops"].tolist() == pytest.approx(
        [1.001e10, 1.001e11]
    )


def test_sentence_and_table_have_the_multipliers() -> None:
    frame = study(LEADS)
    (sentence,) = over_compute(Comparison(frame))
    assert sentence.startswith("text, exact likelihoods, bits per byte from 1e10 to 1e12 training FLOPs: ")
    assert (
        "mamba is ahead of decoder, but its lead shrinks with compute: for the same score decoder" in sentence
    )
    assert "at 1e12 FLOPs (how much more is unknown, as decoder has no larger budget)" in sentence
    assert "decoder_canon has " in sentence
    (grid,) = compute_grids(compute_multipliers(frame), "decoder_canon")
    assert [row[1] for row in grid.rows if row[0] == "mamba"] == ["1e10", "1e11", "1e12"]
    assert all(len(row) == len(grid.head) for row in grid.rows)
