"""Judge registered predictions of compute multipliers by the runs of a study, once they exist.

    archbench findings predictions [runs=runs]

A record, docs/predictions/*.yaml, is committed before the runs of its study. It has an interval for the
compute multiplier of a model at each budget. A prediction holds if the measured 95% interval lies within the
predicted one, fails if both are disjoint, and is undecided if they overlap.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from archbench.analysis.comparison import Comparison
from archbench.analysis.declared.frames import Frames
from archbench.analysis.declared.records import NOT_RUN, UNDECIDED, decisions, read_records
from archbench.analysis.stats.compute.multiplier import SAME_BUDGET
from archbench.analysis.tables.format import budget, interval_in_brackets, multiplier
from archbench.experiments.config.options import run_command
from archbench.experiments.runtime.console import plain_table, print_tables

HOLDS, FAILS = "holds", "fails"


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Predicted compute multipliers of a model over a baseline."""

    model: str
    """Name of the backbone."""
    baseline: str
    study: str
    """The study whose runs decide it."""
    workload: str
    """Name of the task of the study."""
    multipliers: dict[str, list[float]]
    """By budget, such as ``1e18_flops``, the lower and the upper end of the predicted multiplier."""
    reason: str
    """Evidence that existed when the record was written."""

    def __post_init__(self) -> None:
        for name, ends in self.multipliers.items():
            budget_flops(name)
            if len(ends) != 2 or not 0 < ends[0] < ends[1]:
                raise ValueError(f"multipliers.{name}={ends}: write [low, high] with 0 < low < high")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A prediction at one budget, and what was measured."""

    model: str
    flops: float
    predicted: tuple[float, float]
    verdict: str
    """``holds``, ``fails``, ``undecided`` or ``not run``."""
    measured: str = ""
    """The multiplier with its 95% interval."""


@dataclass(frozen=True, kw_only=True)
class PredictionsConfig:
    """The records, and the runs that decide them."""

    predictions: str = "docs/predictions"
    """The folder of registered predictions, one YAML for each model."""
    runs: str = "runs"
    """The folder of all studies."""


def budget_flops(name: str) -> float:
    """Return the FLOPs of a budget such as ``1e18_flops``. Raises ValueError."""
    try:
        return float(name.removesuffix("_flops"))
    except ValueError:
        raise ValueError(f"multipliers.{name}: a budget is written as 1e18_flops") from None


def judge(prediction: Prediction, measured: pd.DataFrame) -> list[Outcome]:
    """Return the outcome at each budget.

    Args:
        prediction: the record.
        measured: from ``analysis.stats.compute.multipliers.compute_multipliers``.
    """
    rows = measured[
        (measured["model"] == prediction.model)
        & (measured["baseline"] == prediction.baseline)
        & (measured["task"] == prediction.workload)
    ]
    outcomes = []
    for name, (low, high) in prediction.multipliers.items():
        flops = budget_flops(name)
        at_budget = rows[(rows["flops"] / flops).between(1 / SAME_BUDGET, SAME_BUDGET)]
        verdict, text = _compare(low, high, at_budget.iloc[0]) if len(at_budget) else (NOT_RUN, "")
        outcome = Outcome(
            model=prediction.model, flops=flops, predicted=(low, high), verdict=verdict, measured=text
        )
        outcomes.append(outcome)
    return outcomes


def _compare(low: float, high: float, row: pd.Series) -> tuple[str, str]:
    """Return the verdict on a predicted interval, and the measured multiplier as text."""
    text = multiplier(row["multiplier"], row["bound"], row["low"], row["high"])
    if low <= row["low"] and row["high"] <= high:
        return HOLDS, text
    if row["high"] < low or high < row["low"]:
        return FAILS, text
    return UNDECIDED, text


def decide_prediction(name: str, prediction: Prediction, frames: Frames) -> list[Outcome]:
    """Return the outcome of a prediction at each budget. Raises DataError if its runs cannot be read."""
    runs = frames.declared(prediction.study)
    empty = pd.DataFrame(columns=["model", "baseline", "task", "flops"])
    return judge(prediction, empty if runs.empty else Comparison(runs).multipliers)


def prepare(config: PredictionsConfig) -> list[Outcome]:
    """Return the outcomes of all predictions. Raises ValueError."""
    records = read_records(Path(config.predictions), Prediction)
    found = decisions(records, decide_prediction, Frames(Path(config.runs), None))
    return [outcome for outcomes in found for outcome in outcomes]


def publish(outcomes: list[Outcome]) -> None:
    """Print a table of the predictions."""
    head = ("model", "FLOPs", "predicted multiplier", "measured", "verdict")
    table = plain_table(*head, left=("verdict",))
    for outcome in outcomes:
        predicted = interval_in_brackets(*outcome.predicted).strip()
        table.add_row(
            outcome.model, budget(outcome.flops), predicted, outcome.measured or "-", outcome.verdict
        )
    print_tables(table)


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0, 2 for a mistake in the arguments, 3 for a record that cannot be used."""
    return run_command(__doc__, PredictionsConfig, arguments, prepare, publish)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
