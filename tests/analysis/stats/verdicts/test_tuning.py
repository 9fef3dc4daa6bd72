"""A verdict must not depend on how the better model was tuned."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest

from archbench.analysis.stats.verdicts.tuning import hold_for_tuning
from archbench.analysis.stats.verdicts.verdict import untested


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("model", "other", "given", "held"),
    [
        ("mamba", "moe", "better", "better"),  # the second-best setting of mamba is below the best one of moe
        ("moe", "mamba", "worse", "worse"),
        ("mamba", "s4", "better", "undecided"),  # that of s4 is better
        ("s4", "mamba", "worse", "undecided"),
        ("moe", "decoder", "better", "undecided"),  # moe has no second setting
        ("mamba", "new", "better", "better"),  # not tuned by a search
        ("s4", "moe", "undecided", "undecided"),
    ],
)
def test_a_verdict_needs_the_second_best_setting_of_the_better_model(
    sign: int, model: str, other: str, given: str, held: str
) -> None:
    """Scores are losses for sign 1, and gains for sign -1."""
    tuned = {"mamba": (2.0, 2.2), "s4": (2.1, 2.5), "moe": (2.3, math.nan), "decoder": (2.9, 3.0)}
    runs = pd.DataFrame(
        [
            {"arm": name, "tuning_validation": sign * best, "tuning_second_validation": sign * second}
            for name, (best, second) in {**tuned, "new": (math.nan, math.nan)}.items()
        ]
    ).assign(direction="lower" if sign == 1 else "higher")
    verdict = replace(untested(model, other, difference=0.1, seeds=3, reason=""), verdict=given)
    result = hold_for_tuning(verdict, runs)
    assert result.verdict == held
    assert result.reason == ("depends on tuning" if held != given else "")


def test_runs_of_earlier_versions_have_no_search() -> None:
    verdict = untested("mamba", "moe", difference=0.1, seeds=3, reason="")
    assert hold_for_tuning(verdict, pd.DataFrame({"arm": ["mamba", "moe"]})) == verdict
