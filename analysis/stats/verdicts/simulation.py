"""Error rates and power of the verdict, by simulation.

    python -m archbench.analysis.stats.verdicts.simulation [REPLICATES]

Prints the table of ``docs/statistics.md``; the default is 4,000 replicates. A family-wise error is the
largest, over 2 to 12 models, all pairs and against a baseline, of the fraction of studies in which any two
equal models are called different. Models differ in spread only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from scipy import stats

from archbench.analysis.stats.verdicts.family import LEVEL, MIN_SEEDS, MOST_SEEDS, POWER
from archbench.analysis.stats.verdicts.pair_errors import Array, welch
from archbench.analysis.stats.verdicts.simulated_procedures import (
    Procedure,
    Studies,
    killed_seed,
    means,
    shared_seeds,
    solve_counts,
)

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
    """Return how often a model is told apart from another one; it is better by ``shift`` deviations."""
    rng = np.random.default_rng(seeds)
    scores = rng.normal(size=(replicates, models, seeds))
    scores[:, -1] += shift
    studies = Studies(scores, against_baseline=against_baseline)
    return float(procedure(studies)[:, (studies.pair_P2 == models - 1).any(axis=1)].mean())


def solve_power(
    procedure: Procedure, seeds: int, replicates: int, *, against_baseline: bool, models: int = 7
) -> float:
    """Return how often a model that always solves a task is told apart from one that solves it in 30%."""
    rng = np.random.default_rng(seeds)
    scores = np.where(rng.random((replicates, models, seeds)) < 0.3, 1.0, 0.3)
    scores[:, -1] = 1.0
    studies = Studies(scores, against_baseline=against_baseline)
    return float(procedure(studies)[:, (studies.pair_P2 == models - 1).any(axis=1)].mean())


def _cell(values: Sequence[float]) -> str:
    return " / ".join(f"{100 * value:.1f}" for value in values)


def table(replicates: int) -> list[list[str]]:
    """Return the rows of the table: errors, then power, in percent at 3 / 5 / 10 seeds."""
    head = ["test", *SCENARIOS, "3 SD", "5 SD", "3 SD, baseline", "5 SD, baseline"]
    errors = [
        _cell([family_wise_error(means, draw, n, replicates) for n in SEEDS]) for draw in SCENARIOS.values()
    ]
    powers = [
        _cell([power(means, shift, n, replicates, against_baseline=against) for n in SEEDS])
        for against in (False, True)
        for shift in (3, 5)
    ]
    solved = _cell([family_wise_error(solve_counts, _solved, n, replicates) for n in SEEDS])
    solve_powers = [
        _cell([solve_power(solve_counts, n, replicates, against_baseline=against) for n in SEEDS])
        for against in (False, True)
    ]
    counts_row = ["Boschloo", *[""] * (len(SCENARIOS) - 1), solved, solve_powers[0], "", solve_powers[1], ""]
    return [head, ["Welch", *errors, *powers], counts_row]


DESIGNS: dict[str, tuple[Procedure, Draw, Sequence[int]]] = {
    "a killed seed, equal variances": (killed_seed, _equal, MODELS),
    "a killed seed, 1 : 10": (killed_seed, _spreads(10), MODELS),
    "two models only, 1 : 100": (means, _spreads(100), (2,)),
    "shared seeds, equal variances": (shared_seeds, _equal, MODELS),
    "shared seeds, 1 : 10": (shared_seeds, _spreads(10), MODELS),
    "one model skewed and noisier": (means, _skewed_noisy, MODELS),
}
"""Further cases with their test, draw and numbers of models."""


def further(replicates: int) -> list[str]:
    """Return errors in percent at 3 / 5 / 10 seeds of the cases that are not in the table."""
    lines = []
    for name, (procedure, draw, models) in DESIGNS.items():
        # MIN_SEEDS seeds must remain after one is lost.
        seeds = [n for n in SEEDS if n > 3 or procedure is not killed_seed]
        errors = _cell([family_wise_error(procedure, draw, n, replicates, models) for n in seeds])
        lines.append(f"{name}: {'- / ' * (len(SEEDS) - len(seeds))}{errors}")
    return lines


def equivalence_power(margin: float, seeds: int, replicates: int) -> float:
    """Return how often two equal models are called equivalent within ``margin`` standard deviations."""
    scores = np.random.default_rng(seeds).normal(size=(replicates, 2, seeds))
    errors = welch(scores.var(axis=-1, ddof=1), np.full(2, float(seeds)), np.array([[0, 1]]))
    half_R1 = errors.error * stats.t.isf(LEVEL, errors.freedom)
    return float((np.abs(np.diff(scores.mean(axis=-1))) + half_R1 < margin).mean())


def seed_questions(replicates: int) -> dict[str, Callable[[int], float]]:
    """Return the power with a number of seeds for each question of the page."""

    def of_means(shift: float, against: bool, models: int = 7) -> Callable[[int], float]:
        return lambda n: power(means, shift, n, replicates, against_baseline=against, models=models)

    def of_counts(against: bool, models: int = 7) -> Callable[[int], float]:
        return lambda n: solve_power(solve_counts, n, replicates, against_baseline=against, models=models)

    def of_equivalence(margin: float) -> Callable[[int], float]:
        return lambda n: equivalence_power(margin, n, replicates)

    cases = {"one of seven against a baseline": True, "one of seven, all pairs": False}
    questions = {}
    for shift in (5, 3, 2, 1):
        questions[f"{shift} SD, two models"] = of_means(shift, True, 2)
        questions |= {f"{shift} SD, {case}": of_means(shift, against) for case, against in cases.items()}
    questions["solve rate of 1 or 0.3, two models"] = of_counts(True, 2)
    questions |= {f"solve rate of 1 or 0.3, {case}": of_counts(against) for case, against in cases.items()}
    return questions | {f"equivalence within {m:g} SD, two models": of_equivalence(m) for m in (2, 1, 0.5)}


def fewest_seeds(power_of: Callable[[int], float]) -> int:
    """Return the fewest seeds with 80% power, which one more seed has, too.

    The power of exact tests does not grow with each seed.
    """
    enough = MIN_SEEDS
    for seeds in range(MIN_SEEDS, MOST_SEEDS):
        if power_of(seeds) < POWER:
            enough = seeds + 1
        elif seeds > enough:
            break
    return enough


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
    print("\nFewest seeds of each model with 80% power:\n")
    for question, power_of in seed_questions(replicates).items():
        print(f"- {question}: {fewest_seeds(power_of)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
