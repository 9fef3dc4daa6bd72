"""The second-best rule: does a verdict hold at the second-best setting of the better model?"""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd

from archbench.analysis.stats.verdicts.verdict import BETTER, UNDECIDED, WORSE, Verdict

DEPENDS_ON_TUNING = "depends on tuning"
"""Reason of a verdict that holds only at the best learning rate and batch size of the better model."""


def hold_for_tuning(verdict: Verdict, runs: pd.DataFrame) -> Verdict:
    """Return a verdict, undecided if it depends on how the better model was tuned.

    The second-best setting of the better model must beat the best setting of the other one, on the validation
    split of the tuning runs. A verdict on a model without a record of its search is unchanged.

    Args:
        verdict: of the test over seeds.
        runs: runs of the models, with the columns ``tuning_validation`` and ``tuning_second_validation``.
    """
    columns = ["tuning_validation", "tuning_second_validation"]
    if verdict.verdict not in (BETTER, WORSE) or not set(columns) <= set(runs):
        return verdict
    better, worse = verdict.model, verdict.other
    if verdict.verdict == WORSE:
        better, worse = worse, better
    first = runs.groupby("arm")[columns].first()
    best_of_worse = float(first.loc[worse, "tuning_validation"])
    if math.isnan(best_of_worse) or math.isnan(float(first.loc[better, "tuning_validation"])):
        return verdict
    lead = best_of_worse - float(first.loc[better, "tuning_second_validation"])
    if runs["direction"].iloc[0] == "higher":
        lead = -lead
    return verdict if lead > 0 else replace(verdict, verdict=UNDECIDED, reason=DEPENDS_ON_TUNING)
