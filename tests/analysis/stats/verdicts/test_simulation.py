"""Error rates and power of the verdict by simulation, and the page that prints them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from archbench.analysis.stats.verdicts.family import holm
from archbench.analysis.stats.verdicts.simulated_procedures import (
    Procedure,
    Studies,
    holm_rejects,
    killed_seed,
    means,
    shared_seeds,
    solve_counts,
)
from archbench.analysis.stats.verdicts.simulation import (
    DESIGNS,
    SCENARIOS,
    SEEDS,
    family_wise_error,
    fewest_seeds,
    further,
    main,
    power,
    seed_questions,
    solve_power,
)
from archbench.analysis.stats.verdicts.solve_counts import solve_verdicts
from archbench.analysis.stats.verdicts.verdict import verdicts

PAGE = Path(__file__).parents[4] / "docs" / "statistics.md"


def limit(replicates: int) -> float:
    """Return 6%, plus three standard errors of the simulation."""
    return 0.06 + 3 * (0.06 * 0.94 / replicates) ** 0.5


def decided(found: list) -> set[frozenset[str]]:
    return {frozenset((v.model, v.other)) for v in found if v.verdict != "undecided"}


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_at_most_6_percent_of_studies_of_equal_models_find_a_difference(name: str, seeds: int) -> None:
    procedure = solve_counts if name == "solved or not" else means
    assert family_wise_error(procedure, SCENARIOS[name], seeds, 2000) < limit(2000)


CASES = [(shared_seeds, n) for n in SEEDS] + [(killed_seed, n) for n in SEEDS if n > 3]
"""Designs with the seeds of a study. Of three seeds a killed one leaves two, and a verdict takes three."""


@pytest.mark.full
@pytest.mark.parametrize("name", ["equal variances", "1 : 10", "1 : 100"])
@pytest.mark.parametrize(("procedure", "seeds"), CASES)
def test_shared_seeds_and_a_killed_seed_keep_the_error(procedure: Procedure, name: str, seeds: int) -> None:
    assert family_wise_error(procedure, SCENARIOS[name], seeds, 2000) < limit(2000) + 0.005


def test_few_of_the_pairs_called_different_are_equal() -> None:
    """The false discovery rate of all pairs, where half of the models are better."""
    scores = np.random.default_rng(0).normal(size=(1000, 8, 5))
    scores[:, 4:] += 3
    studies = Studies(scores, against_baseline=False)
    rejected, (a_P, b_P) = means(studies), studies.pair_P2.T
    wrong = (rejected & ((a_P < 4) == (b_P < 4))).sum(axis=1) / np.maximum(rejected.sum(axis=1), 1)
    assert wrong.mean() < 0.05


@pytest.mark.parametrize("seeds", SEEDS)
def test_few_of_the_solve_rates_called_different_are_equal(seeds: int) -> None:
    rate_K = np.array([1.0, 1.0, 0.5, 0.5, 0.5, 0.1, 0.1, 0.1])
    scores = (np.random.default_rng(seeds).random((600, len(rate_K), seeds)) < rate_K[:, None]) * 1.0
    studies = Studies(scores, against_baseline=False)
    rejected, rate_P2 = solve_counts(studies), rate_K[studies.pair_P2]
    wrong = (rejected & (rate_P2[:, 0] == rate_P2[:, 1])).sum(axis=1) / np.maximum(rejected.sum(axis=1), 1)
    assert wrong.mean() < 0.05


def test_five_seeds_find_five_standard_deviations() -> None:
    assert power(means, 5, 5, 500, against_baseline=True) > 0.97
    assert power(means, 5, 5, 500, against_baseline=False) > 0.97
    assert power(means, 3, 5, 500, against_baseline=True) > 0.7


def test_solve_counts_need_ten_seeds() -> None:
    assert solve_power(solve_counts, 5, 300, against_baseline=True) < 0.3
    assert solve_power(solve_counts, 10, 300, against_baseline=True) > 0.75


@pytest.mark.parametrize("seeds", [4, 5])
def test_the_simulated_tests_of_means_are_the_verdict(seeds: int) -> None:
    scores = np.random.default_rng(0).normal(size=(12, 5, seeds))
    scores[:6, 1] *= 20
    scores[:, 0] += 4
    for baseline in (None, "0"):
        studies = Studies(scores, against_baseline=baseline is not None)
        for shared, procedure in ((False, means), (True, shared_seeds)):
            for study, rejected in zip(scores, procedure(studies), strict=True):
                named = {str(i): dict(enumerate(own)) for i, own in enumerate(study.tolist())}
                found = verdicts(named, "higher", baseline=baseline, shared_seeds=shared)
                assert decided(found) == {frozenset(map(str, p)) for p in studies.pair_P2[rejected].tolist()}


def test_a_simulated_killed_seed_is_the_verdict_without_it() -> None:
    scores = np.random.default_rng(0).normal(size=(12, 4, 5))
    scores[:, 0] += 4
    studies = Studies(scores, against_baseline=False)
    for study, rejected in zip(scores, killed_seed(studies), strict=True):
        named = {str(i): dict(enumerate(own)) for i, own in enumerate(study.tolist())}
        del named["3"][4]
        found = verdicts(named, "higher")
        assert decided(found) == {frozenset(map(str, p)) for p in studies.pair_P2[rejected].tolist()}


def test_the_simulated_solve_counts_are_the_verdict() -> None:
    rate_K = np.array([1.0, 0.6, 0.0, 0.0, 0.0, 0.0])
    scores = np.where(np.random.default_rng(0).random((20, 6, 5)) < rate_K[:, None], 1.0, 0.3)
    for baseline in (None, "0"):
        studies = Studies(scores, against_baseline=baseline is not None)
        for study, rejected in zip(scores, solve_counts(studies), strict=True):
            counts = {
                str(i): (sum(score >= 0.95 for score in own), 5) for i, own in enumerate(study.tolist())
            }
            found = solve_verdicts(counts, baseline=baseline)
            assert decided(found) == {frozenset(map(str, p)) for p in studies.pair_P2[rejected].tolist()}


def test_holm_of_many_studies_is_holm_of_each() -> None:
    p = np.random.default_rng(0).uniform(0, 0.04, (50, 6))
    assert holm_rejects(p).tolist() == [[value < 0.05 for value in holm(row)] for row in p.tolist()]


def test_the_command_prints_the_table_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["20"]) == 0
    printed = capsys.readouterr().out.splitlines()
    page = PAGE.read_text()
    rows = page[page.index(printed[0]) :].partition("\n\n")[0].splitlines()
    assert [row.split(" | ")[0] for row in rows] == [row.split(" | ")[0] for row in printed[: len(rows)]]
    for line in further(5):
        assert f"- {line.split(':')[0]}:" in page
    assert len(DESIGNS) == len(further(5))


def test_the_page_has_the_fewest_seeds_with_80_percent_power() -> None:
    """The search is of whole numbers, with the power of the table below it."""
    questions = seed_questions(1000)
    rows = re.findall(r"^\| a difference of (\d) SD \| (\d+) \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.M)
    assert [row[0] for row in rows] == ["5", "3", "2", "1"]
    for shift, *seeds in rows[:3]:
        names = [name for name in questions if name.startswith(f"{shift} SD")]
        for name, number in zip(names, seeds, strict=True):
            assert fewest_seeds(questions[name]) == pytest.approx(int(number), abs=1)


def test_power_that_falls_once_is_searched_beyond_it() -> None:
    powers = {3: 0.5, 4: 0.81, 5: 0.7, 6: 0.85, 7: 0.9, 8: 0.95}
    assert fewest_seeds(powers.__getitem__) == 6


@pytest.mark.full
def test_the_numbers_of_the_page_are_those_of_a_simulation() -> None:
    [row] = re.findall(r"^\| Welch \| (.*) \|$", PAGE.read_text(), flags=re.MULTILINE)
    cells = [[float(value) / 100 for value in cell.split(" / ")] for cell in row.split(" | ")]
    for draw, shown in zip(SCENARIOS.values(), cells[: len(SCENARIOS)], strict=True):
        assert family_wise_error(means, draw, 5, 1500) == pytest.approx(shown[1], abs=0.02)
    cases = [(False, 3), (False, 5), (True, 3), (True, 5)]
    for (against, shift), shown in zip(cases, cells[len(SCENARIOS) :], strict=True):
        assert power(means, shift, 5, 1500, against_baseline=against) == pytest.approx(shown[1], abs=0.04)
