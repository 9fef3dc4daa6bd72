"""Error rates and power of the verdict and of the candidates that it was chosen from, by simulation.

    python -m analysis.stats.verdicts.simulation [REPLICATES]

Prints the table of ``docs/statistics.md``; the default is 4,000 replicates. A family-wise error is the
largest, over 2 to 12 models, all pairs and against a baseline, of the fraction of studies in which any two
equal models are called different. Models differ in spread only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from analysis.stats.verdicts.max_statistic import Array
from analysis.stats.verdicts.simulated_procedures import (
    PROCEDURES,
    Procedure,
    Studies,
    blocked_larger_se_or_pairwise,
    counts_or_ranks,
    larger_se_or_pairwise,
    solve_counts,
    unequal_larger_se_or_pairwise,
)

COUNTS: dict[str, Procedure] = {"Boschloo": solve_counts, "Boschloo or Wilcoxon": counts_or_ranks}
"""Tests of solve counts (solve rates of 30% to 100%)."""
SEEDS = (3, 5, 10)
MODELS = (2, 3, 7, 12)
REPLICATES = 4000
Draw = Callable[[np.random.Generator, int, int, int], Iterator[Array]]
"""Scores (replicates, models, seeds) of the studies of one scenario, one array for each case."""


def _spreads(ratio: float) -> Draw:
    """Return studies in which some models have ``ratio`` times the variance of the remaining models."""

    def draw(rng: np.random.Generator, replicates: int, models: int, seeds: int) -> Iterator[Array]:
        # One, two or half of the models are noisier: the last ones, or the baseline.
        for noisy in sorted({1, 2, models // 2} & set(range(models))):
            for noisy_start in (True, False):
                deviation_K = np.ones(models)
                deviation_K[slice(noisy) if noisy_start else slice(models - noisy, None)] = ratio**0.5
                yield rng.normal(size=(replicates, models, seeds)) * deviation_K[:, None]
        steps_K = np.geomspace(1, ratio**0.5, models)
        yield rng.normal(size=(replicates, models, seeds)) * steps_K[:, None]

    return draw


def _equal(rng: np.random.Generator, replicates: int, models: int, seeds: int) -> Iterator[Array]:
    yield rng.normal(size=(replicates, models, seeds))


def _without_spread(rng: np.random.Generator, replicates: int, models: int, seeds: int) -> Iterator[Array]:
    scores = rng.normal(size=(replicates, models, seeds))
    scores[:, -1] = 0.0
    yield scores


def _lognormal(rng: np.random.Generator, replicates: int, models: int, seeds: int) -> Iterator[Array]:
    yield np.exp(rng.normal(size=(replicates, models, seeds)))


def _solved(rng: np.random.Generator, replicates: int, models: int, seeds: int) -> Iterator[Array]:
    for rate in (0.3, 0.7):
        yield np.where(rng.random((replicates, models, seeds)) < rate, 1.0, 0.3)


def _skewed_noisy(rng: np.random.Generator, replicates: int, models: int, seeds: int) -> Iterator[Array]:
    """Draw scores in which the last model is skewed and has ten times the variance of each other model."""
    scores = rng.normal(size=(replicates, models, seeds))
    scores[:, -1] = 10**0.5 * (np.exp(rng.normal(size=(replicates, seeds))) - np.exp(0.5)) / 2.16
    yield scores


SCENARIOS: dict[str, Draw] = {
    "equal variances": _equal,
    "1 : 10": _spreads(10),
    "1 : 100": _spreads(100),
    "one without spread": _without_spread,
    "lognormal": _lognormal,
    "solved or not": _solved,
}


def family_wise_error(
    procedure: Procedure, draw: Draw, seeds: int, replicates: int, models: Sequence[int] = MODELS
) -> float:
    """Return the largest fraction of studies of equal models in which a procedure finds any difference."""
    worst = 0.0
    for count in models:
        rng = np.random.default_rng(1000 * count + seeds)
        for scores in draw(rng, replicates, count, seeds):
            for against in (False, True):
                rejected = procedure(Studies(scores, against))
                worst = max(worst, float(rejected.any(axis=1).mean()))
    return worst


def power(
    procedure: Procedure,
    shift: float,
    seeds: int,
    replicates: int,
    *,
    against_baseline: bool,
    models: int = 7,
) -> float:
    """Return how often a model is detected that is better than each other one by ``shift`` deviations."""
    rng = np.random.default_rng(seeds)
    scores = rng.normal(size=(replicates, models, seeds))
    scores[:, -1] += shift
    studies = Studies(scores, against_baseline=against_baseline)
    return float(procedure(studies)[:, (studies.pair_P2 == models - 1).any(axis=1)].mean())


def power_with_a_noisy_model(procedure: Procedure, seeds: int, replicates: int, models: int = 11) -> float:
    """Return how often a model 10 deviations better is detected if another model is 30 times noisier."""
    rng = np.random.default_rng(seeds)
    scores = rng.normal(size=(replicates, models, seeds))
    scores[:, -1] *= 30
    scores[:, -2] += 10
    studies = Studies(scores, against_baseline=False)
    shifted, noisy = ((studies.pair_P2 == model).any(axis=1) for model in (models - 2, models - 1))
    return float(procedure(studies)[:, shifted & ~noisy].mean())


def solve_power(
    procedure: Procedure, seeds: int, replicates: int, *, against_baseline: bool, models: int = 7
) -> float:
    """Return how often a model that always solves a task is detected among models that solve it in 30%."""
    rng = np.random.default_rng(seeds)
    scores = np.where(rng.random((replicates, models, seeds)) < 0.3, 1.0, 0.3)
    scores[:, -1] = 1.0
    studies = Studies(scores, against_baseline=against_baseline)
    return float(procedure(studies)[:, (studies.pair_P2 == models - 1).any(axis=1)].mean())


def partial_power(procedure: Procedure, seeds: int, replicates: int, models: int = 11) -> float:
    """Return how often partial solvers are distinguished from models that do not learn.

    Half of the models stay at 0.3; each seed of the remaining models reaches 0.6 to 0.9, or, with probability
    0.2, the solution (0.99). Scores of a plateau vary by 0.005.
    """
    rng = np.random.default_rng(seeds)
    scores = 0.3 + 0.005 * rng.normal(size=(replicates, models, seeds))
    able = models // 2
    reached = rng.uniform(0.6, 0.9, size=(replicates, able, seeds))
    scores[:, :able] = np.where(rng.random(reached.shape) < 0.2, 0.99, reached)
    studies = Studies(scores, against_baseline=False)
    return float(procedure(studies)[:, (studies.pair_P2 < able).sum(axis=1) == 1].mean())


def table(replicates: int) -> list[list[str]]:
    """Return the rows of the table: errors, then power, in percent at 3 / 5 / 10 seeds."""

    def cell(values: Sequence[float]) -> str:
        return " / ".join(f"{100 * value:.0f}" for value in values)

    head = ["procedure", *SCENARIOS, "power 3 SD", "power 5 SD", "3 SD, baseline", "5 SD, baseline"]
    head.append("10 SD, one noisy")
    rows = [head]
    for name, procedure in PROCEDURES.items():
        errors = [
            cell([family_wise_error(procedure, draw, n, replicates) for n in SEEDS])
            for draw in SCENARIOS.values()
        ]
        powers = [
            cell([power(procedure, shift, n, replicates, against_baseline=against) for n in SEEDS])
            for against in (False, True)
            for shift in (3, 5)
        ]
        power_with_noise = cell([power_with_a_noisy_model(procedure, n, replicates) for n in SEEDS])
        rows.append([name, *errors, *powers, power_with_noise])
    for name, procedure in COUNTS.items():
        solved = cell([family_wise_error(procedure, _solved, n, replicates) for n in SEEDS])
        powers = [
            cell([solve_power(procedure, n, replicates, against_baseline=against) for n in SEEDS])
            for against in (False, True)
        ]
        rows.append([name, *[""] * 5, solved, powers[0], "", powers[1], "", ""])
    return rows


def further(replicates: int) -> list[str]:
    """Return errors in percent at 3 / 5 / 10 seeds of further cases that are not in the table."""
    cases: dict[str, tuple[Procedure, Draw, Sequence[int]]] = {
        "a killed seed, equal variances": (unequal_larger_se_or_pairwise, _equal, MODELS),
        "a killed seed, 1 : 10": (unequal_larger_se_or_pairwise, _spreads(10), MODELS),
        "two models only, 1 : 100": (larger_se_or_pairwise, _spreads(100), (2,)),
        "shared seeds (blocked), equal variances": (blocked_larger_se_or_pairwise, _equal, MODELS),
        "shared seeds (blocked), 1 : 10": (blocked_larger_se_or_pairwise, _spreads(10), MODELS),
        "one model skewed and noisier": (larger_se_or_pairwise, _skewed_noisy, MODELS),
    }
    lines = []
    for name, (procedure, draw, models) in cases.items():
        # MIN_SEEDS seeds must remain after one is lost.
        seeds = [n for n in SEEDS if n > 3 or procedure is not unequal_larger_se_or_pairwise]
        errors = [family_wise_error(procedure, draw, n, replicates, models) for n in seeds]
        percentages = " / ".join(f"{100 * error:.0f}" for error in errors)
        lines.append(f"{name}: {'- / ' * (len(SEEDS) - len(seeds))}{percentages}")
    for name, procedure in COUNTS.items():
        power_text = " / ".join(f"{100 * partial_power(procedure, n, replicates):.0f}" for n in SEEDS)
        lines.append(f"partial solvers told from models that learn nothing, power of {name}: {power_text}")
    return lines


def main(arguments: Sequence[str]) -> int:
    """Print the tables; the first argument is the number of replicates."""
    replicates = int(arguments[0]) if arguments else REPLICATES
    rows = table(replicates)
    for index, row in enumerate(rows):
        print("| " + " | ".join(row) + " |")
        if index == 0:
            print("|" + " --- |" * len(row))
    print()
    print("\n".join(f"- {line}" for line in further(replicates)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
