"""Scores of a run that is trained again."""

from __future__ import annotations

import pytest

from archbench.analysis.submission.records import curve_problems, repeated_problems
from archbench.experiments.runtime.run_status import RunStatus
from archbench.experiments.tasks.metrics import Metric
from archbench.experiments.tracking.run_files import RunResult


def metric(value: float, standard_error: float = 0.1, split: str = "test") -> Metric:
    return Metric(
        name="answer_accuracy", split=split, value=value, unit="", direction="higher", averaging="micro: all",
        likelihood=None, estimator="greedy", samples=1, standard_error=standard_error, items=8,
    )  # fmt: skip


def result(*metrics: Metric, status: RunStatus = RunStatus.COMPLETE) -> RunResult:
    return RunResult(
        format=1, key="a-s0", study="toy", cell="a", digest="0", seed=0, backbone="a", objective="causal_lm",
        task="recall", scale="nano", status=status, metrics=list(metrics), validation=[metric(0.5)],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("repeated", "problem"),
    [
        (result(metric(1.0), metric(0.4, split="longer")), None),
        (result(metric(1.01), metric(0.4, split="longer")), None),
        (result(metric(1.05), metric(0.4, split="longer")), "run: test answer_accuracy is 1, and 1.05"),
        (result(metric(1.0), metric(0.3, split="longer")), "run: longer answer_accuracy is 0.4, and 0.3"),
        (
            result(metric(1.0, 0.3), metric(0.4, split="longer")),
            "run: standard error of test answer_accuracy",
        ),
        (result(status=RunStatus.DIVERGED), "run: trained again it is diverged, not complete"),
    ],
)
def test_every_score_may_differ_within_the_tolerance(repeated: RunResult, problem: str | None) -> None:
    recorded = result(metric(1.0), metric(0.4, split="longer"))
    found = list(repeated_problems("run", recorded, repeated, 0.02))
    assert found == [] if problem is None else found[0].startswith(problem), found


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ([0.1, 0.1, 0.9, 1.0], None),
        ([0.1, 0.9, 0.9, 1.0], None),  # the jump comes one validation earlier
        ([0.9, 0.9, 0.9, 1.0], 10),
        ([0.1, 0.1, 0.9, 1.1], 40),
    ],
)
def test_validations_may_differ_within_the_tolerance(values: list[float], step: int | None) -> None:
    repeated = [[10.0 * i, 100.0 * i, 1e6 * i, v] for i, v in enumerate([0.1, 0.1, 0.9, 1.0], start=1)]
    recorded = [[*point[:3], value] for point, value in zip(repeated, values, strict=True)]
    found = list(curve_problems("run", recorded, repeated, 0.02))
    assert found == [] if step is None else found[0].startswith(f"run: validation at step {step} is"), found


def test_other_validations_are_found() -> None:
    (problem,) = curve_problems("run", [[10, 100, 1e6, 0.1]], [[10, 200, 2e6, 0.1]], 0.02)
    assert problem == "run: metrics.jsonl has other validations than when it is trained again"
