"""Scores of a run that is trained again."""

from __future__ import annotations

import pandas as pd

from analysis.submission.records import repeated_problems


def test_a_run_that_is_trained_again_may_differ_within_the_tolerance() -> None:
    run = pd.Series(
        {
            "study": "toy",
            "cell": "a-b-c",
            "digest": "0",
            "seed": 1,
            "status": "complete",
            "score": 1.0,
            "validation": 2.0,
        }
    )
    assert not list(repeated_problems(run, run, 0.0))
    assert list(repeated_problems(run, pd.Series({**run, "score": 1.05}), 0.02))
    assert not list(repeated_problems(run, pd.Series({**run, "score": 1.01}), 0.02))
    assert list(repeated_problems(run, pd.Series({**run, "status": "diverged"}), 0.02))
