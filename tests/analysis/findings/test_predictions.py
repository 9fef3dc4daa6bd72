"""Registered predictions are judged by measured compute multipliers."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from archbench.analysis.findings.predictions import Prediction, judge, main
from tests import ROOT


def prediction(**multipliers: list[float]) -> Prediction:
    return Prediction(
        model="mamba", baseline="decoder", study="gpu_text", workload="text_gpu", multipliers=multipliers,
        reason="a guess",
    )  # fmt: skip


def measured(low: float, high: float, flops: float = 1.005e17) -> pd.DataFrame:
    row = {
        "task": "text_gpu", "baseline": "decoder", "model": "mamba", "flops": flops,
        "multiplier": 1.5, "bound": "", "low": low, "high": high,
    }  # fmt: skip
    return pd.DataFrame([row])


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.2, 1.8, "holds"),
        (1.0, 2.0, "holds"),
        (0.9, 1.8, "undecided"),
        (1.5, math.inf, "undecided"),
        (2.1, 3.0, "fails"),
        (0.5, 0.9, "fails"),
        (2.1, math.inf, "fails"),
    ],
)
def test_an_interval_is_compared_with_the_predicted_one(low: float, high: float, verdict: str) -> None:
    [outcome] = judge(prediction(**{"1e17_flops": [1.0, 2.0]}), measured(low, high))
    assert outcome.verdict == verdict
    assert outcome.measured.startswith("1.5 [")


def test_another_budget_or_model_is_not_run() -> None:
    [outcome] = judge(prediction(**{"1e18_flops": [1.0, 2.0]}), measured(1.2, 1.8))
    assert (outcome.verdict, outcome.measured) == ("not run", "")
    [outcome] = judge(prediction(**{"1e17_flops": [1.0, 2.0]}), measured(1.2, 1.8).assign(model="s4"))
    assert outcome.verdict == "not run"


@pytest.mark.parametrize(
    ("name", "ends", "words"),
    [("1e17_flops", [2.0, 1.0], "0 < low < high"), ("large", [1.0, 2.0], "written as 1e18_flops")],
)
def test_a_record_without_an_interval_or_a_budget_is_rejected(
    name: str, ends: list[float], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        prediction(**{name: ends})


def test_the_registered_predictions_wait_for_their_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["runs=nowhere"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "not run" in line]
    assert len(lines) == 9
    assert {line[0] for line in lines} == {"mamba", "decoder_canon", "hybrid"}
