"""Verdicts on tasks that a seed solves or does not: a test of solve counts.

If training jumps, scores have two values and are not normally distributed: a test of means has a family-wise
error of up to 18% with five seeds. Boschloo's exact test of the two counts keeps its level. Against a
baseline, Holm's correction controls the family-wise error. For all pairs with five seeds, Holm's correction
could never reject; there Benjamini and Hochberg's (1995) procedure controls the false discovery rate, and the
family-wise error in studies of equal models. It needs at least 10 seeds to detect a model that always solves
the task against one with a solve rate of 30%.

Counts ignore how far models get that do not solve the task. For all pairs of more than two models, pairs
with five seeds or more are therefore also compared by ranks (``exact_tests.rank_p``), each test at half of
the level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations

import numpy as np
from scipy import stats

from analysis.stats.intervals import rate_difference_interval
from analysis.stats.verdicts.exact_tests import MIN_RANKED, boschloo, boschloo_table, rank_p, shift_interval
from analysis.stats.verdicts.family import MIN_SEEDS, MOST_SEEDS
from analysis.stats.verdicts.max_statistic import LEVEL, POWER
from analysis.stats.verdicts.standard import holm
from analysis.stats.verdicts.verdict import (
    BELOW_MARGIN,
    BETTER,
    SEED_COUNTS,
    UNDECIDED,
    WORSE,
    Verdict,
    untested,
)

COUNT_TEST, RANK_TEST = "Boschloo, solve rate", "Wilcoxon, scores"


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """Two models, and the results of the tests before any correction."""

    names: tuple[str, str]
    counts: tuple[tuple[int, int], tuple[int, int]]
    scores: tuple[Sequence[float], Sequence[float]] | None
    """Scores for the rank test; None if the models are compared by counts only."""

    @cached_property
    def p_counts(self) -> float:
        return boschloo(*self.counts)

    @cached_property
    def p_ranks(self) -> float:
        return 1.0 if self.scores is None else rank_p(*self.scores)

    @property
    def share(self) -> float:
        """Fraction of the level of each test."""
        return 1.0 if self.scores is None else 0.5

    @property
    def p(self) -> float:
        return min(1.0, min(self.p_counts, self.p_ranks) / self.share)


def solve_verdicts(
    counts: Mapping[str, tuple[int, int]],
    scores: Mapping[str, Sequence[float]] | None = None,
    *,
    baseline: str | None = None,
    margin: float = 0.0,
) -> list[Verdict]:
    """Return the verdicts of a family on solve rates: against the baseline, or all pairs without one.

    Intervals are Newcombe's, at a level with Bonferroni's correction; for all pairs, the correction controls
    the false coverage rate (Benjamini and Yekutieli 2005). If the rank test has the smaller p-value, ``test``
    names it, and difference and interval are those of scores. No pair is called equivalent.

    Args:
        counts: for each model the number of seeds that solved the task, and of all seeds that ended.
        scores: for each model its scores; higher is better.
        baseline: name of the model that every model is compared with; None for all pairs.
        margin: difference of scores below which the rank test decides no pair.
    """
    rates = {name: solved / seeds if seeds else math.nan for name, (solved, seeds) in counts.items()}
    if baseline is None:
        pairs = [(a, b) if rates[a] >= rates[b] else (b, a) for a, b in combinations(counts, 2)]
    else:
        pairs = [(model, baseline) for model in counts if model != baseline]
    enough = [pair for pair in pairs if min(counts[name][1] for name in pair) >= MIN_SEEDS]
    ranked = scores if baseline is None and len(counts) > 2 else None
    tested = []
    for model, other in enough:
        pair_scores = None if ranked is None else (ranked[model], ranked[other])
        if pair_scores is not None and (
            min(map(len, pair_scores)) < MIN_RANKED or not np.isfinite(np.concatenate(pair_scores)).all()
        ):
            pair_scores = None
        tested.append(_Pair(names=(model, other), counts=(counts[model], counts[other]), scores=pair_scores))
    p_values = [pair.p for pair in tested]
    if baseline is None and tested:
        p_values = stats.false_discovery_control(p_values, method="bh").tolist()
        comparisons = len(tested) / max(1, sum(p < LEVEL for p in p_values))
    else:
        p_values, comparisons = holm(p_values), float(len(tested))
    results = [_verdict(pair, p, comparisons, margin) for pair, p in zip(tested, p_values, strict=True)]
    for model, other in pairs:
        fewest = min(counts[model][1], counts[other][1])
        if fewest < MIN_SEEDS:
            difference, reason = rates[model] - rates[other], SEED_COUNTS[fewest]
            results.append(untested(model, other, difference=difference, seeds=fewest, reason=reason))
    return results


def _verdict(pair: _Pair, p: float, comparisons: float, margin: float) -> Verdict:
    if p < LEVEL and pair.p_ranks < pair.p_counts:
        return _by_ranks(pair, p, comparisons, margin)
    counts_a, counts_b = pair.counts
    rates = (counts_a[0] / counts_a[1], counts_b[0] / counts_b[1])
    difference, comparisons = rates[0] - rates[1], comparisons / pair.share
    low, high = rate_difference_interval(counts_a, counts_b, 1 - LEVEL / comparisons)
    if p >= LEVEL:  # the interval is approximate, the test is exact: they must not contradict each other
        low, high = min(low, 0.0), max(high, 0.0)
    seeds = min(counts_a[1], counts_b[1])
    verdict = (BETTER if difference > 0 else WORSE) if p < LEVEL else UNDECIDED
    variance = rates[0] * (1 - rates[0]) / counts_a[1] + rates[1] * (1 - rates[1]) / counts_b[1]
    return Verdict(
        model=pair.names[0], other=pair.names[1], difference=difference, standard_error=math.sqrt(variance),
        low=low, high=high, p=p, verdict=verdict, detectable=_detectable_rate(rates[1], seeds, comparisons),
        seeds_to_decide=_seeds(*sorted(rates), comparisons), reason="", seeds=seeds, test=COUNT_TEST,
    )  # fmt: skip


def _by_ranks(pair: _Pair, p: float, comparisons: float, margin: float) -> Verdict:
    """Return the verdict of a pair that the rank test separates; ``model`` is the better one."""
    assert pair.scores is not None
    names, scores = pair.names, pair.scores
    difference, low, high = shift_interval(*scores, LEVEL * pair.share / comparisons)
    if difference < 0:
        names, difference, low, high = names[::-1], -difference, -high, -low
    surely = difference > margin
    return Verdict(
        model=names[0], other=names[1], difference=difference,
        standard_error=math.hypot(*(np.std(sample, ddof=1) / math.sqrt(len(sample)) for sample in scores)),
        low=low, high=high, p=p, verdict=BETTER if surely else UNDECIDED, detectable=math.nan,
        seeds_to_decide=None, reason="" if surely else BELOW_MARGIN, seeds=min(map(len, scores)),
        test=RANK_TEST,
    )  # fmt: skip


def _power(rates: tuple[float, float], seeds: int, comparisons: float) -> float:
    """Return the probability that the test rejects at the level corrected for ``comparisons``."""
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
    """Return the fewest seeds of each model that would decide the observed rates with 80% power."""
    low, high = MIN_SEEDS - 1, MOST_SEEDS + 1
    while high - low > 1 and lower < upper:
        middle = (low + high) // 2
        low, high = (low, middle) if _power((lower, upper), middle, comparisons) >= POWER else (middle, high)
    return None if high > MOST_SEEDS else high
