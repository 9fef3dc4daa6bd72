"""Verdicts on tasks that a seed solves or does not: Boschloo's exact test of solve counts.

If training jumps, scores have two values and are not normally distributed: Welch's test finds a difference
in up to 29% of studies of equal models with three seeds. The exact test of the two counts keeps its level.
Against a baseline, Holm's correction controls the family-wise error. For more than 25 pairs with five seeds
it could never reject; for all pairs Benjamini and Hochberg's (1995) procedure controls the false discovery
rate, and the family-wise error in studies of equal models. About 10 seeds detect a model that always solves
the task against one with a solve rate of 30%.

Counts ignore how far models get that do not solve the task: their scores are in the tables, without a test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from itertools import combinations

import numpy as np
from scipy import stats

from archbench.analysis.stats.intervals import rate_difference_interval
from archbench.analysis.stats.verdicts.exact_tests import boschloo, boschloo_table
from archbench.analysis.stats.verdicts.family import (
    LEVEL,
    MIN_SEEDS,
    MOST_SEEDS,
    POWER,
    correct,
    interval_level,
)
from archbench.analysis.stats.verdicts.verdict import BETTER, SEED_COUNTS, UNDECIDED, WORSE, Verdict, untested

COUNT_TEST = "Boschloo, solve rate"
Counts = tuple[int, int]
"""Number of seeds of a model that solved the task, and of all seeds that ended."""


def solve_verdicts(counts: Mapping[str, Counts], *, baseline: str | None = None) -> list[Verdict]:
    """Return the verdicts of a family on solve rates: against the baseline, or all pairs without one.

    Intervals are Newcombe's at the level of ``family.interval_level``, widened to contain 0 if the exact test
    does not reject. No pair is called equivalent.

    Args:
        counts: of each model.
        baseline: name of the model that every model is compared with; None for all pairs.
    """
    rates = {name: solved / seeds if seeds else math.nan for name, (solved, seeds) in counts.items()}
    if baseline is None:
        pairs = [(a, b) if rates[a] >= rates[b] else (b, a) for a, b in combinations(counts, 2)]
    else:
        pairs = [(model, baseline) for model in counts if model != baseline]
    tested = [pair for pair in pairs if min(counts[name][1] for name in pair) >= MIN_SEEDS]
    raw_P = np.array([boschloo(counts[model], counts[other]) for model, other in tested])
    p_values = correct(raw_P, all_pairs=baseline is None).tolist()
    comparisons = LEVEL / interval_level(np.array(p_values), all_pairs=baseline is None)
    results = [
        _verdict(pair, (counts[pair[0]], counts[pair[1]]), p, comparisons)
        for pair, p in zip(tested, p_values, strict=True)
    ]
    for model, other in pairs:
        fewest = min(counts[model][1], counts[other][1])
        if fewest < MIN_SEEDS:
            difference, reason = rates[model] - rates[other], SEED_COUNTS[fewest]
            results.append(untested(model, other, difference=difference, seeds=fewest, reason=reason))
    return results


def _verdict(pair: tuple[str, str], counts: tuple[Counts, Counts], p: float, comparisons: float) -> Verdict:
    """Return the verdict of a pair by its corrected p-value."""
    counts_a, counts_b = counts
    rates = (counts_a[0] / counts_a[1], counts_b[0] / counts_b[1])
    difference = rates[0] - rates[1]
    low, high = rate_difference_interval(counts_a, counts_b, 1 - LEVEL / comparisons)
    if p >= LEVEL:  # the interval is approximate, the test is exact: they must not contradict each other
        low, high = min(low, 0.0), max(high, 0.0)
    seeds = min(counts_a[1], counts_b[1])
    verdict = (BETTER if difference > 0 else WORSE) if p < LEVEL else UNDECIDED
    variance = rates[0] * (1 - rates[0]) / counts_a[1] + rates[1] * (1 - rates[1]) / counts_b[1]
    return Verdict(
        model=pair[0], other=pair[1], difference=difference, standard_error=math.sqrt(variance),
        low=low, high=high, p=p, verdict=verdict, detectable=_detectable_rate(rates[1], seeds, comparisons),
        seeds_to_decide=_seeds(*sorted(rates), comparisons), reason="", seeds=seeds, test=COUNT_TEST,
    )  # fmt: skip


def _power(rates: tuple[float, float], seeds: int, comparisons: float) -> float:
    """Return the probability that the test rejects at the level corrected for ``pair_verdicts``."""
    pmf_a, pmf_b = (stats.binom.pmf(np.arange(seeds + 1), seeds, rate) for rate in rates)
    rejected = boschloo_table(seeds, seeds) < LEVEL / comparisons
    return float(pmf_a @ rejected @ pmf_b)


@cache
def _detectable_rate(rate: float, seeds: int, comparisons: float) -> float:
    """Return the smallest difference from a rate that is detected with 80% power; NaN if no difference is."""
    for step in range(5, 101, 5):
        others = [other for other in (rate + step / 100, rate - step / 100) if 0 <= other <= 1]
        if others and min(_power((other, rate), seeds, comparisons) for other in others) >= POWER:
            return step / 100
    return math.nan


@cache
def _seeds(lower: float, upper: float, comparisons: float) -> int | None:
    """Return a number of seeds of each model that would decide the observed rates with 80% power.

    Power grows with the seeds, but not at each step, so that fewer may be enough by chance of the counts.
    """
    low, high = MIN_SEEDS - 1, MOST_SEEDS + 1
    while high - low > 1 and lower < upper:
        middle = (low + high) // 2
        low, high = (low, middle) if _power((lower, upper), middle, comparisons) >= POWER else (middle, high)
    return None if high > MOST_SEEDS else high
