"""Compute multipliers of a study with several budgets: how many times its FLOPs the baseline needs.

A model has one curve for each task and likelihood type: test scores, which are losses, over the training
FLOPs of its budgets. The baseline is ``study.baseline``. With ``study.explains``, a model with a part of the
others, such as the baseline with a short convolution, ``shared`` is the fraction of each lead that it has.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from archbench.analysis.stats.arms import in_finished_arms, mixed_data, study_setting
from archbench.analysis.stats.compute.multiplier import DRAWS, SAME_BUDGET, Baseline, Curve, Multiplier
from archbench.analysis.stats.targets.performance_profile import lines
from archbench.analysis.stats.trusted_speeds import with_trusted_speeds

GROUP = ["task", "likelihood", "metric"]
COLUMNS = [
    *GROUP, "baseline", "model", "flops", "seeds", "score", "baseline_score", "multiplier", "bound", "low",
    "high", "time_multiplier", "time_bound", "verdict", "slope", "slope_low", "slope_high", "shared",
    "shared_low", "shared_high",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The runs of a model with one budget."""

    flops: float
    scores: list[float]
    """Test scores of the seeds."""
    seconds: float
    """Of training, the median over seeds; NaN where other work disturbed the runs."""

    @property
    def mean(self) -> float:
        return float(np.mean(self.scores))


@dataclass(frozen=True, kw_only=True)
class Share:
    """The fraction of a lead over the baseline that another model has too."""

    value: float
    low: float
    high: float


UNKNOWN = Share(value=math.nan, low=math.nan, high=math.nan)


def compute_multipliers(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each budget of each model; columns: ``COLUMNS``.

    ``flops`` are those of the model. ``time_multiplier`` is the multiplier in seconds of training instead of
    FLOPs, from the baseline's curve over seconds, and ``time_bound`` tells whether that is a bound. Both are
    empty where other work disturbed the runs (``analysis.stats.trusted_speeds``). ``verdict`` and ``slope``
    are of all budgets of a model (``analysis.stats.compute.multiplier.ComputeComparison``). Intervals are
    95% over seeds; those of multipliers are corrected for the number of models. Empty without a baseline
    that has several budgets, and for runs on different data.
    """
    rows: list[dict[str, object]] = []
    frame = with_trusted_speeds(frame)
    runs = frame[in_finished_arms(frame) & (frame["direction"] == "lower") & frame["training_flops"].gt(0)]
    runs = runs.assign(model=lines(runs))
    for key, group in runs.groupby(GROUP, dropna=False, sort=True):
        baseline = study_setting(group, "baseline")
        by_model = {str(name): budgets(model_runs) for name, model_runs in group.groupby("model")}
        if baseline not in by_model or len(by_model[baseline]) < 2 or mixed_data(group):
            continue
        part = study_setting(group, "explains")
        others = [name for name in by_model if name != baseline]
        reference = Reference(by_model[baseline], len(others))
        for name in others:
            rows += [
                dict(zip(GROUP, key, strict=True)) | {"baseline": baseline, "model": name} | row
                for row in reference.rows(by_model[name], by_model.get(str(part), []))
            ]
    return pd.DataFrame(rows, columns=COLUMNS)


def budgets(runs: pd.DataFrame) -> list[Budget]:
    """Return the budgets of one model, increasing."""
    runs = runs.sort_values("training_flops")
    step = runs["training_flops"] > SAME_BUDGET * runs["training_flops"].shift(fill_value=0)
    return [
        Budget(
            flops=float(rows["training_flops"].median()), scores=rows["score"].tolist(),
            seconds=float(rows["training_seconds"].median()),
        )
        for _, rows in runs.groupby(step.cumsum())
    ]  # fmt: skip


class Reference:
    """The budgets of the baseline, with its curves over FLOPs and over seconds.

    Args:
        budgets: of the baseline.
        models: number of models that are compared with it, for which the intervals are corrected.
    """

    def __init__(self, budgets: list[Budget], models: int) -> None:
        self.budgets, self.confidence = budgets, 1 - 0.05 / models
        self.over_flops = Baseline(_curve(budgets))
        timed = [budget for budget in budgets if math.isfinite(budget.seconds)]
        seconds = [budget.seconds for budget in timed]
        self.over_seconds = None
        if len(timed) > 1 and all(earlier < later for earlier, later in itertools.pairwise(seconds)):
            means = [[budget.mean] for budget in timed]
            self.over_seconds = Baseline(Curve(flops=seconds, scores=means))

    def rows(self, model: list[Budget], part: list[Budget]) -> list[dict[str, object]]:
        """Return the rows of one model.

        Args:
            model: its budgets.
            part: those of ``study.explains``; empty without.
        """
        comparison = self.over_flops.compare(_curve(model), confidence=self.confidence)
        rows = []
        for budget, multiplier in zip(model, comparison.multipliers, strict=True):
            same, of_part = at_budget(self.budgets, budget.flops), at_budget(part, budget.flops)
            shared, time = UNKNOWN, self._in_time(budget)
            if same is not None and of_part is not None and part != model:
                shared = shared_lead(of_part, budget, same)
            rows.append(
                {
                    "flops": multiplier.flops, "seeds": len(budget.scores), "score": budget.mean,
                    "baseline_score": math.nan if same is None else same.mean,
                    "multiplier": multiplier.value, "bound": multiplier.bound, "low": multiplier.low,
                    "high": multiplier.high, "time_multiplier": math.nan if time is None else time.value,
                    "time_bound": "" if time is None else time.bound,
                    "shared": shared.value, "shared_low": shared.low, "shared_high": shared.high,
                    "verdict": comparison.verdict, "slope": comparison.slope,
                    "slope_low": comparison.slope_low, "slope_high": comparison.slope_high,
                }
            )  # fmt: skip
        return rows

    def _in_time(self, budget: Budget) -> Multiplier | None:
        """Return how many times the seconds of a model the baseline needs; None where one is unknown."""
        if self.over_seconds is None or math.isnan(budget.seconds):
            return None
        curve = Curve(flops=[budget.seconds], scores=[[budget.mean]])
        return self.over_seconds.compare(curve).multipliers[0]


def _curve(model: list[Budget]) -> Curve:
    return Curve(flops=[budget.flops for budget in model], scores=[budget.scores for budget in model])


def at_budget(model: list[Budget], flops: float) -> Budget | None:
    """Return a budget of a model; None if it was not trained with it."""
    near = [b for b in model if max(b.flops / flops, flops / b.flops) <= SAME_BUDGET]
    return near[0] if near else None


def shared_lead(part: Budget, model: Budget, baseline: Budget) -> Share:
    """Return the fraction of a model's lead over the baseline that ``part`` has; unknown without a lead.

    The interval is from the same bootstrap over seeds as that of multipliers.
    """
    generator = np.random.default_rng(0)
    curves = [Curve(flops=[1.0], scores=[budget.scores]) for budget in (baseline, part, model)]
    if not all(curve.replicated for curve in curves):
        return UNKNOWN
    base_D, part_D, model_D = (curve.draw_means(DRAWS, generator)[:, 0] for curve in curves)
    if np.quantile(base_D - model_D, 0.025) <= 0:
        return UNKNOWN
    value = (baseline.mean - part.mean) / (baseline.mean - model.mean)
    low, high = np.quantile((base_D - part_D) / (base_D - model_D), [0.025, 0.975])
    return Share(value=value, low=float(low), high=float(high))
