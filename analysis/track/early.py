"""Compare the order of models by validation scores before the end of training with their final order.

For text over compute, ``analysis.stats.compute.decision_accuracy`` compares budgets that were each trained to
the end. The workloads of a track have one budget, so the smaller budgets are here points of the same runs
(Magnusson et al. 2025, DataDecide, arXiv 2504.11393, use such points, too). Their learning rates have not
decayed yet.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pandas as pd

from archbench.analysis.stats.compute.decision_accuracy import MIN_MODELS, signal_to_noise

FRACTIONS = (0.25, 0.5)
"""Fractions of the training steps at which models are compared."""
COLUMNS = [
    "task", "likelihood", "models", "signal_to_noise", "fraction", "pairs", "same_order", "decided",
    "decided_same",
]  # fmt: skip


def early_decisions(
    runs: pd.DataFrame, pairs: pd.DataFrame, fractions: Sequence[float] = FRACTIONS
) -> pd.DataFrame:
    """Return a row for each fraction of each task and likelihood type with three models or more.

    Columns: ``COLUMNS``. ``signal_to_noise`` is that of the scores at the end. ``same_order`` counts the
    ``pairs`` with the same order of mean scores early and at the end, ``decided_same`` those of the
    ``decided`` ones, which have a verdict of better or worse. A tie counts as half.

    Args:
        runs: runs with scores, and with validation curves (``analysis.declared.study_frames``).
        pairs: their comparisons, from ``analysis.stats.pairs.pair_verdicts``.
        fractions: of the training steps.
    """
    rows: list[dict[str, object]] = []
    complete = runs[runs["status"] == "complete"]
    if complete.empty:  # columns of scores are missing, too
        return pd.DataFrame(rows, columns=COLUMNS)
    for (task, likelihood), group in complete.groupby(["task", "likelihood"], dropna=False, sort=True):
        compared = pairs[pairs["task"].eq(task) & pairs["model"].isin(group["arm"])]
        if group["arm"].nunique() < MIN_MODELS or compared.empty:
            continue
        common = {
            "task": task, "likelihood": likelihood, "models": group["arm"].nunique(),
            "signal_to_noise": signal_to_noise(group),
        }  # fmt: skip
        final = group.groupby("arm")["score"].mean()
        for fraction in fractions:
            early = group.assign(early=early_scores(group, fraction)).groupby("arm")["early"].mean()
            if early.notna().all():
                rows.append(common | {"fraction": fraction} | _agreement(early, final, compared))
    return pd.DataFrame(rows, columns=COLUMNS)


def early_scores(runs: pd.DataFrame, fraction: float) -> pd.Series:
    """Return the last validation score of each run up to a fraction of its steps; NaN without one."""
    scores = []
    for curve, steps in zip(runs["curve"], runs["training_steps"], strict=True):
        points = json.loads(curve) if isinstance(curve, str) else []
        until = [score for step, _, _, score in points if step <= fraction * steps]
        scores.append(until[-1] if until else math.nan)
    return pd.Series(scores, runs.index, dtype=float)


def _agreement(early: pd.Series, final: pd.Series, pairs: pd.DataFrame) -> dict[str, object]:
    """Return the counts of pairs.

    Args:
        early: mean score of each model.
        final: the same at the end.
        pairs: comparisons at the end.
    """
    differences = [
        scores.reindex(pairs["model"]).to_numpy() - scores.reindex(pairs["other"]).to_numpy()
        for scores in (early, final)
    ]
    product = differences[0] * differences[1]
    same = (product > 0) + 0.5 * (product == 0)
    separated = pairs["separated"].to_numpy(dtype=bool)
    return {
        "pairs": len(pairs), "same_order": float(same.sum()), "decided": int(separated.sum()),
        "decided_same": float(same[separated].sum()),
    }  # fmt: skip
