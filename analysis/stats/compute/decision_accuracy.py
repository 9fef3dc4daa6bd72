"""Decision accuracy: does a small budget predict which of two models is better at the largest budget?

Decision accuracy is the fraction of pairs of models with the same order of mean scores at a small budget
and at the largest one (Magnusson et al. 2025, DataDecide, arXiv 2504.11393). The signal-to-noise ratio of a
budget is the range of the mean scores of models over the standard deviation between seeds (after Heineman et
al. 2025, arXiv 2508.13144, whose noise is that of the last checkpoints).
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd

from archbench.analysis.stats.arms import arm_table, in_finished_arms
from archbench.analysis.stats.compute.multiplier import SAME_BUDGET
from archbench.analysis.stats.compute.multipliers import GROUP
from archbench.analysis.stats.pairs import pair_verdicts, verdict_of
from archbench.analysis.stats.targets.performance_profile import lines

COLUMNS = [
    *GROUP, "scale", "flops", "largest_flops", "models", "pairs", "accuracy", "decided", "same", "reversed",
    "undecided", "signal_to_noise",
]  # fmt: skip
MIN_MODELS = 3
"""Models that the largest budget needs."""


def decision_accuracy(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each budget of each task and likelihood type, the smallest first.

    Columns: ``COLUMNS``. ``accuracy`` is the fraction of ``pairs`` with the order of the largest budget. Of
    the pairs that are decided there, ``same``, ``reversed`` and ``undecided`` count the verdicts at the
    budget.
    These columns are NaN at the largest budget itself. Models without finished runs at both budgets are left
    out. Empty without a task that has three models at two budgets.
    """
    rows: list[dict[str, object]] = []
    runs = frame[in_finished_arms(frame) & frame["score"].notna() & frame["training_flops"].gt(0)]
    runs = runs.assign(arm=lines(runs))  # one name for a model at all budgets
    for key, group in runs.groupby(GROUP, dropna=False, sort=True):
        scales = _compared_budgets(group)
        if len(scales) < 2 or scales.iloc[-1] < SAME_BUDGET * scales.iloc[0]:
            continue
        largest = group[group["scale"] == scales.index[-1]]
        verdicts = _pairs(largest)
        rows += [
            dict(zip(GROUP, key, strict=True))
            | {"scale": scale, "flops": flops, "largest_flops": scales.iloc[-1]}
            | _agreement(group[group["scale"] == scale], largest, verdicts)
            for scale, flops in scales.items()
        ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _compared_budgets(runs: pd.DataFrame) -> pd.Series:
    """Return the training FLOPs of each scale, up to the largest one with ``MIN_MODELS`` models or more.

    A larger budget with fewer models, such as one for the baseline alone, decides nothing.
    """
    scales = runs.groupby("scale")["training_flops"].median().sort_values()
    models = runs.groupby("scale")["arm"].nunique()
    last = max((index for index, scale in enumerate(scales.index) if models[scale] >= MIN_MODELS), default=-1)
    return scales.iloc[: last + 1]


def _pairs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the verdicts of all pairs, also where the study has a baseline."""
    runs = runs.assign(baseline=None)
    return pair_verdicts(runs, arm_table(runs))


def _agreement(small: pd.DataFrame, largest: pd.DataFrame, verdicts: pd.DataFrame) -> dict[str, object]:
    """Return the columns of one budget.

    Args:
        small: runs of the budget.
        largest: runs of the largest budget.
        verdicts: of all pairs at the largest budget.
    """
    means = small.groupby("arm")["score"].mean()
    columns: dict[str, object] = {"models": len(means), "signal_to_noise": signal_to_noise(small)}
    if small["scale"].iloc[0] == largest["scale"].iloc[0]:
        return columns
    final = largest.groupby("arm")["score"].mean()
    pairs = list(itertools.combinations(sorted(set(means.index) & set(final.index)), 2))
    agree = [(means[a] - means[b]) * (final[a] - final[b]) > 0 for a, b in pairs]
    decided = [
        pair for pair in pairs if (row := verdict_of(verdicts, *pair)) is not None and row["separated"]
    ]
    outcomes = _outcomes(decided, _pairs(small), verdicts)
    return columns | {
        "pairs": len(pairs), "accuracy": float(np.mean(agree)) if pairs else math.nan,
        "decided": len(decided), **{name: outcomes.count(name) for name in ("same", "reversed", "undecided")},
    }  # fmt: skip


def _outcomes(decided: list[tuple[str, str]], small: pd.DataFrame, verdicts: pd.DataFrame) -> list[str]:
    """Return for each decided pair whether the small budget has the same verdict, the reverse, or none."""
    outcomes = []
    for model, other in decided:
        at_small, at_largest = verdict_of(small, model, other), verdict_of(verdicts, model, other)
        assert at_largest is not None
        if at_small is None or not at_small["separated"]:
            outcomes.append("undecided")
        else:
            outcomes.append("same" if at_small["verdict"] == at_largest["verdict"] else "reversed")
    return outcomes


def signal_to_noise(runs: pd.DataFrame) -> float:
    """Return the range of the models' mean scores over the standard deviation between seeds.

    The variance between seeds is the mean over models. NaN without repeated seeds or fewer than two models.
    """
    by_model = runs.groupby("arm")["score"]
    means, variances = by_model.mean(), by_model.var(ddof=1).dropna()
    if len(means) < 2 or variances.empty or variances.mean() == 0:
        return math.nan
    return float((means.max() - means.min()) / math.sqrt(variances.mean()))
