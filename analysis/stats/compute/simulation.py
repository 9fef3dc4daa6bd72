"""Error rates of the verdicts over compute, and coverage of the intervals of multipliers, by simulation.

    python -m archbench.analysis.stats.compute.simulation [STUDIES]

Prints a table of ``docs/statistics.md``; the default is 400 studies for each case. A study has a baseline
and four equal models at four budgets, with the correction for four models. Its scores are those of a planted
curve, a power law with an irreducible part, and normal noise between seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from archbench.analysis.stats.compute.multiplier import ComputeComparison, Curve, compare_compute

BUDGETS = (4e10, 1.3e11, 4e11, 1.3e12)
MODELS = 4
STUDIES = 400
DRAWS = 1000
"""Draws of each bootstrap; an interval of 98.75% has 6 on each side."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Standard deviations between seeds at each budget, in bits per byte."""

    baseline: tuple[float, ...]
    model: tuple[float, ...]


NOISES = {
    "equal": Noise(baseline=(0.03,) * 4, model=(0.03,) * 4),
    "falls with compute": Noise(baseline=(0.1, 0.06, 0.03, 0.015), model=(0.1, 0.06, 0.03, 0.015)),
    "noisy baseline": Noise(baseline=(0.06,) * 4, model=(0.01,) * 4),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Planted multipliers at each budget, and the verdicts that are true of them."""

    multipliers: tuple[float, ...]
    true: tuple[str, ...]


CASES = {
    "equal": Case(multipliers=(1, 1, 1, 1), true=()),
    "constant lead": Case(multipliers=(2, 2, 2, 2), true=("ahead",)),
    "constant deficit": Case(multipliers=(0.5, 0.5, 0.5, 0.5), true=("behind",)),
    "shrinking lead": Case(multipliers=(6, 4, 2.7, 1.8), true=("ahead", "ahead but shrinking")),
    "lead that ends": Case(multipliers=(4, 2, 1, 1), true=()),
    "crossing": Case(multipliers=(3, 1.5, 0.7, 0.4), true=("crosses", "behind")),
    "baseline does not reach": Case(multipliers=(40, 40, 40, 40), true=("ahead",)),
}


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Fractions of simulated studies."""

    wrong: float
    """In which any of the models has a verdict that is not true; ``undecided`` is never wrong."""
    found: float
    """In which the first model has a true verdict other than ``undecided``."""
    coverage: float
    """In which the intervals of all models contain the multiplier: the smallest over budgets."""
    slope_coverage: float
    """In which the intervals of all models contain the slope; NaN where the multipliers are no power law."""


def loss(flops: float) -> float:
    """Return the planted loss of the baseline in bits per byte."""
    return 1.5 + 2.0 * (flops / 4e10) ** -0.25


def simulate(case: Case, noise: Noise, seeds: int, studies: int, draws: int = DRAWS) -> Rates:
    """Return error rates and coverage of one case."""
    generator = np.random.default_rng(seeds)
    true_slope = _slope(case.multipliers)
    wrong, true, covered, slopes = [], [], [], []
    for study in range(studies):
        baseline = _draw((1.0,) * len(BUDGETS), noise.baseline, seeds, generator)
        models = [_draw(case.multipliers, noise.model, seeds, generator) for _ in range(MODELS)]
        results = [
            compare_compute(m, baseline, confidence=1 - 0.05 / MODELS, draws=draws, seed=study)
            for m in models
        ]
        verdicts = [result.verdict for result in results]
        wrong.append(any(v not in (*case.true, "undecided") for v in verdicts))
        true.append(verdicts[0] in case.true)
        covered.append(np.all([_covers(result, case.multipliers) for result in results], axis=0))
        slopes.append(all(not r.slope_low > true_slope and not r.slope_high < true_slope for r in results))
    return Rates(
        wrong=float(np.mean(wrong)),
        found=float(np.mean(true)),
        coverage=float(np.mean(covered, axis=0).min()),
        slope_coverage=float(np.mean(slopes)) if np.isfinite(true_slope) else np.nan,
    )


def _draw(
    multipliers: Sequence[float], deviations: Sequence[float], seeds: int, generator: np.random.Generator
) -> Curve:
    scores = [
        list(loss(flops * multiplier) + deviation * generator.standard_normal(seeds))
        for flops, multiplier, deviation in zip(BUDGETS, multipliers, deviations, strict=True)
    ]
    return Curve(flops=BUDGETS, scores=scores)


def _covers(result: ComputeComparison, multipliers: Sequence[float]) -> list[bool]:
    return [
        estimate.low <= planted <= estimate.high
        for estimate, planted in zip(result.multipliers, multipliers, strict=True)
    ]


def _slope(multipliers: Sequence[float]) -> float:
    """Return the slope of log multiplier over log FLOPs; NaN if it is not nearly constant."""
    slopes = np.diff(np.log(multipliers)) / np.diff(np.log(BUDGETS))
    return float(slopes.mean()) if np.ptp(slopes) < 0.05 else np.nan


def table(studies: int) -> list[list[str]]:
    """Return the rows of the table, in percent at three and five seeds."""
    rows = [["case", "noise", "wrong verdict", "true verdict", "interval covers", "slope covers"]]
    for name, case in CASES.items():
        for kind, noise in NOISES.items():
            rates = [simulate(case, noise, seeds, studies) for seeds in (3, 5)]
            cells = [
                " / ".join("-" if np.isnan(value) else f"{100 * value:.1f}" for value in values)
                for values in (
                    [r.wrong for r in rates],
                    [r.found for r in rates],
                    [r.coverage for r in rates],
                    [r.slope_coverage for r in rates],
                )
            ]
            rows.append([name, kind, *cells])
    return rows


def main(arguments: Sequence[str]) -> int:
    """Print the table; the first argument is the number of studies."""
    for index, row in enumerate(table(int(arguments[0]) if arguments else STUDIES)):
        print("| " + " | ".join(row) + " |")
        if index == 0:
            print("|" + " --- |" * len(row))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
