"""Decisions before the end of training, of curves made up by hand."""

from __future__ import annotations

import json
import math

import pandas as pd
import pytest

from archbench.analysis.track.early import early_decisions, early_scores

CURVES = {  # steps, tokens, FLOPs, validation accuracy
    "decoder": [[25, 1, 1, 0.2], [50, 2, 2, 0.7], [100, 4, 4, 0.9]],
    "mamba": [[25, 1, 1, 0.3], [50, 2, 2, 0.5], [100, 4, 4, 0.8]],
    "s4": [[25, 1, 1, 0.1], [50, 2, 2, 0.5], [100, 4, 4, 0.3]],
}
FINAL = {"decoder": 0.9, "mamba": 0.8, "s4": 0.3}


def runs(direction: str = "higher") -> pd.DataFrame:
    rows = [
        {
            "task": "recall", "likelihood": None, "arm": model, "seed": seed, "status": "complete",
            "direction": direction, "training_steps": 100.0, "curve": json.dumps(curve),
            "score": FINAL[model] + 0.1 * (seed - 1),
        }
        for model, curve in CURVES.items()
        for seed in range(3)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def pairs(sign: float = 1.0) -> pd.DataFrame:
    rows = [("decoder", "mamba", 0.1, False), ("decoder", "s4", 0.6, True), ("mamba", "s4", 0.5, True)]
    found = pd.DataFrame(rows, columns=["model", "other", "difference", "separated"])
    return found.assign(task="recall", difference=sign * found["difference"])


def test_the_order_at_a_fraction_is_compared_with_that_at_the_end() -> None:
    quarter, half = early_decisions(runs(), pairs()).to_dict("records")
    # At a quarter mamba is above the decoder; at half it is equal to S4, which counts as half a pair.
    assert (quarter["same_order"], quarter["pairs"]) == (2.0, 3)
    assert (quarter["decided_same"], quarter["decided"]) == (2.0, 2)
    assert (half["same_order"], half["decided_same"]) == (2.5, 1.5)
    # The range is 0.6, and every model has a standard deviation of 0.1 between seeds.
    assert quarter["signal_to_noise"] == pytest.approx(6.0)


def test_of_losses_the_lower_one_is_better() -> None:
    decisions = early_decisions(runs("lower"), pairs(-1.0))
    assert decisions["same_order"].tolist() == [2.0, 2.5]


def test_two_models_are_too_few() -> None:
    assert early_decisions(runs().query("arm != 's4'"), pairs().iloc[:1]).empty


def test_a_run_without_a_score_before_the_fraction_has_none() -> None:
    scores = early_scores(runs().iloc[:1], 0.2)
    assert math.isnan(scores.iloc[0])
    assert early_decisions(runs(), pairs(), [0.2]).empty
    assert early_scores(runs().assign(curve=None).iloc[:1], 1.0).isna().all()
