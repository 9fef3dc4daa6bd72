"""Missing runs of a command line are found and trained, and a search of trials ends."""

from __future__ import annotations

from subprocess import CompletedProcess

import pandas as pd
import pytest

from archbench.analysis.declared import runs
from archbench.analysis.declared.runs import MAX_ROUNDS, missing, search, train_missing


def test_runs_that_ended_or_were_refused_are_not_missing() -> None:
    status = [
        "done",
        "stored",
        "stored: diverged",
        "diverged: nan",
        "refused",
        "failed: disk",
        "missing",
        "begun",
    ]
    assert missing(pd.DataFrame({"status": status}))["status"].tolist() == [
        "failed: disk",
        "missing",
        "begun",
    ]


@pytest.fixture
def exit_codes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Exit codes of the commands that train; what is listed is one missing run of each command."""
    codes: list[int] = []
    listed = pd.DataFrame({"status": ["missing"], "backbone": ["decoder"], "refused": [None]})
    monkeypatch.setattr(runs, "listed", lambda words: listed)
    monkeypatch.setattr(runs, "run_python", lambda words: CompletedProcess(words, codes.pop(0)))
    return codes


def test_diverged_and_refused_runs_are_results_and_other_errors_end_the_command(
    exit_codes: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    exit_codes += [0, 4, 2, 3]
    assert [train_missing(["-m", "study=x"], "study=x") for _ in range(3)] == [1, 1, 1]
    with pytest.raises(ValueError, match="ended with exit code 3"):
        train_missing(["-m", "study=x"], "study=x")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["study=x: 1 runs, 1 missing, 0 refused", "archbench train -m study=x"]


def test_a_search_ends_when_no_trial_is_asked_for_or_the_same_ones_again(exit_codes: list[int]) -> None:
    exit_codes += [0] * 4
    rounds = [[["rate=1"], ["rate=2"]], [["rate=3"]], []]
    assert search(lambda: rounds.pop(0), "study=x") == 3
    assert search(lambda: [["rate=4"]], "study=x") == 1


def test_a_search_without_an_end_is_an_error(exit_codes: list[int]) -> None:
    exit_codes += [0] * MAX_ROUNDS
    with pytest.raises(ValueError, match=f"has not ended in {MAX_ROUNDS} rounds"):
        search(lambda: [[f"rate={len(exit_codes)}"]], "study=x")
