"""Simulated verdicts over compute: error rates, coverage, and what a planted curve is found to be."""

from __future__ import annotations

import pytest

from archbench.analysis.stats.compute import simulation
from archbench.analysis.stats.compute.simulation import CASES, NOISES, simulate


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("noise", NOISES)
def test_at_most_6_percent_of_studies_have_a_wrong_verdict(name: str, noise: str) -> None:
    """Of 60 studies three may be wrong: with an error rate of 1%, more are in one of 3,000."""
    rates = simulate(CASES[name], NOISES[noise], seeds=5, studies=60, draws=400)
    assert rates.wrong <= 0.051
    assert rates.coverage >= 0.88
    assert not rates.slope_coverage < 0.88


def test_five_seeds_find_a_constant_lead_and_a_crossing() -> None:
    for name in ("constant lead", "crossing", "baseline does not reach"):
        assert simulate(CASES[name], NOISES["equal"], seeds=5, studies=20, draws=400).found >= 0.8


def test_a_verdict_that_is_not_true_is_counted() -> None:
    """The same planted curves, with nothing called true."""
    case = simulation.Case(multipliers=(40, 40, 40, 40), true=())
    assert simulate(case, NOISES["equal"], seeds=5, studies=5, draws=400).wrong == 1


def test_the_command_prints_a_row_for_each_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulation.main(["1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(CASES) * len(NOISES)
