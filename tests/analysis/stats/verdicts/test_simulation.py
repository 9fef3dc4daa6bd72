"""Error rates and power of the verdict by simulation, held against what it was chosen from."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from analysis.stats.verdicts.simulated_procedures import (
    Procedure,
    Studies,
    blocked_larger_se_or_pairwise,
    counts_or_ranks,
    holm_rejects,
    larger_se,
    larger_se_or_pairwise,
    paired_holm,
    solve_counts,
    unequal_larger_se_or_pairwise,
)
from analysis.stats.verdicts.simulation import (
    SCENARIOS,
    SEEDS,
    Draw,
    family_wise_error,
    further,
    main,
    partial_power,
    power,
    power_with_a_noisy_model,
    solve_power,
)
from analysis.stats.verdicts.solve_counts import holm, solve_verdicts
from analysis.stats.verdicts.verdict import verdicts

PAGE = Path(__file__).parents[4] / "docs" / "statistics.md"


def limit(replicates: int) -> float:
    """6%, and three standard errors of the simulation."""
    return 0.06 + 3 * (0.06 * 0.94 / replicates) ** 0.5


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("name", ["equal variances", "1 : 10"])
def test_few_studies_of_equal_models_find_a_difference(name: str, seeds: int) -> None:
    assert family_wise_error(larger_se_or_pairwise, SCENARIOS[name], seeds, 300, models=(2, 7)) < limit(300)


@pytest.mark.full
@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_error_of_the_family_is_at_most_6_percent(name: str, seeds: int) -> None:
    procedure = counts_or_ranks if name == "solved or not" else larger_se_or_pairwise
    assert family_wise_error(procedure, SCENARIOS[name], seeds, 3000) < limit(3000)


DESIGNS = [(blocked_larger_se_or_pairwise, seeds) for seeds in SEEDS] + [
    (unequal_larger_se_or_pairwise, seeds) for seeds in SEEDS if seeds > 3
]
"""Designs with the seeds of a study. Of three seeds a killed one leaves two, and a verdict takes three."""


@pytest.mark.full
@pytest.mark.parametrize("name", ["equal variances", "1 : 10", "1 : 100"])
@pytest.mark.parametrize(("procedure", "seeds"), DESIGNS)
def test_blocks_and_a_killed_seed_hold_the_error_too(procedure: Procedure, name: str, seeds: int) -> None:
    draw: Draw = SCENARIOS[name]
    assert family_wise_error(procedure, draw, seeds, 2000) < limit(2000) + 0.005


@pytest.mark.parametrize(
    ("shift", "seeds", "against_baseline", "least"),
    [(5, 3, False, 0.7), (5, 3, True, 0.8), (3, 5, False, 0.74), (3, 5, True, 0.85), (3, 10, False, 0.99)],
)
def test_power_is_what_the_page_says(shift: int, seeds: int, against_baseline: bool, least: float) -> None:
    found = {
        procedure: power(procedure, shift, seeds, 600, against_baseline=against_baseline)
        for procedure in (larger_se_or_pairwise, paired_holm)
    }
    assert found[larger_se_or_pairwise] > least
    assert found[larger_se_or_pairwise] >= found[paired_holm]


def test_solve_counts_need_ten_seeds() -> None:
    assert solve_power(counts_or_ranks, 5, 300, against_baseline=True) < 0.3
    assert solve_power(counts_or_ranks, 10, 300, against_baseline=True) > 0.75


def test_five_seeds_tell_partial_solvers_from_those_that_learn_nothing() -> None:
    assert partial_power(counts_or_ranks, 5, 100) > 0.95
    assert partial_power(solve_counts, 5, 100) < 0.05


@pytest.mark.parametrize("tied", [True, False])
def test_the_simulated_counts_and_ranks_are_the_verdict(tied: bool) -> None:
    rng = np.random.default_rng(0)
    rate_K = np.array([1.0, 0.6, 0.0, 0.0, 0.0, 0.0])
    scores = np.where(rng.random((20, 6, 5)) < rate_K[:, None], 1.0, 0.3)
    scores[:, 2] = 0.7
    scores += 0 if tied else 0.02 * rng.normal(size=scores.shape)
    studies = Studies(scores, against_baseline=False)
    for study, rejected in zip(scores, counts_or_ranks(studies), strict=True):
        named = {str(i): own for i, own in enumerate(study.tolist())}
        counts = {name: (sum(score >= 0.9 for score in own), 5) for name, own in named.items()}
        decided = {
            frozenset((v.model, v.other)) for v in solve_verdicts(counts, named) if v.verdict == "better"
        }
        assert decided == {frozenset(map(str, pair)) for pair in studies.pair_P2[rejected].tolist()}


@pytest.mark.parametrize("seeds", SEEDS)
def test_few_of_the_pairs_called_different_are_equal(seeds: int) -> None:
    rate_K = np.array([1.0, 1.0, 0.5, 0.5, 0.5, 0.1, 0.1, 0.1])
    scores = (np.random.default_rng(seeds).random((600, len(rate_K), seeds)) < rate_K[:, None]) * 1.0
    studies = Studies(scores, against_baseline=False)
    rejected, rate_P2 = counts_or_ranks(studies), rate_K[studies.pair_P2]
    wrong = (rejected & (rate_P2[:, 0] == rate_P2[:, 1])).sum(axis=1) / np.maximum(rejected.sum(axis=1), 1)
    assert wrong.mean() < 0.05


def test_a_noisy_model_does_not_hide_what_others_differ_by() -> None:
    assert power_with_a_noisy_model(larger_se_or_pairwise, 5, 300) > 0.95
    assert power_with_a_noisy_model(larger_se, 5, 300) < 0.2


@pytest.mark.parametrize("seeds", [4, 5])
def test_the_simulated_verdict_is_the_verdict(seeds: int) -> None:
    scores = np.random.default_rng(0).normal(size=(20, 5, seeds))
    scores[:10, 1] *= 20
    scores[:, 0] += 4
    for baseline in (None, "0"):
        studies = Studies(scores, against_baseline=baseline is not None)
        for blocked, procedure in ((False, larger_se_or_pairwise), (True, blocked_larger_se_or_pairwise)):
            for study, rejected in zip(scores, procedure(studies), strict=True):
                named = {str(i): dict(enumerate(own)) for i, own in enumerate(study.tolist())}
                ours = verdicts(named, "higher", baseline=baseline, shared_seeds=blocked)
                decided = {frozenset((v.model, v.other)) for v in ours if v.verdict != "undecided"}
                assert decided == {frozenset(map(str, pair)) for pair in studies.pair_P2[rejected].tolist()}


def test_holm_of_many_studies_is_holm_of_each() -> None:
    p = np.random.default_rng(0).uniform(0, 0.04, (50, 6))
    assert holm_rejects(p).tolist() == [[value < 0.05 for value in holm(row)] for row in p.tolist()]


def test_the_command_prints_the_table_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["20"]) == 0
    printed = capsys.readouterr().out.splitlines()
    page = PAGE.read_text()
    rows = page[page.index(printed[0]) :].partition("\n\n")[0].splitlines()
    names = {row.split(" | ")[0] for row in rows[2:]}
    assert {"| larger-SE or Welch", "| Boschloo or Wilcoxon"} <= names
    assert names <= {row.split(" | ")[0] for row in printed}
    for line in further(5):
        assert f"- {line.split(':')[0]}" in page


@pytest.mark.full
def test_the_numbers_of_the_page_are_those_of_a_simulation() -> None:
    [row] = re.findall(r"^\| larger-SE or Welch \| (.*) \|$", PAGE.read_text(), flags=re.MULTILINE)
    cells = [[float(value) / 100 for value in cell.split(" / ")] for cell in row.split(" | ")]
    for draw, shown in zip(SCENARIOS.values(), cells[: len(SCENARIOS)], strict=True):
        assert family_wise_error(larger_se_or_pairwise, draw, 5, 1500) == pytest.approx(shown[1], abs=0.02)
    for (against, shift), shown in zip(
        [(False, 3), (False, 5), (True, 3), (True, 5)], cells[len(SCENARIOS) : -1], strict=True
    ):
        found = power(larger_se_or_pairwise, shift, 5, 1500, against_baseline=against)
        assert found == pytest.approx(shown[1], abs=0.04)
