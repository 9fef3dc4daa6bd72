"""Verdicts on tasks that a seed solves or does not: a test of solve counts.

Where training jumps, scores have two values and no normal distribution: a test of means errs in up to 18% of
studies of five seeds. Boschloo's exact test of the two counts holds its level. Against a baseline, Holm's
correction bounds the chance of any error in the family. Of all pairs that would decide nothing with five
seeds, whatever they show: there Benjamini and Hochberg's (1995) procedure bounds the expected fraction of
errors among the pairs that are called different, and in studies of equal models the chance of any. It needs
at least 10 seeds to find a model that always solves against one of 30%.

Counts are blind to what models reach that do not solve the task. Of all pairs of more than two models, those
with five seeds or more are therefore ranked too (``rank_test``), each test at half of the level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations

import numpy as np
from scipy import stats

from analysis.stats.shares import rate_difference_interval
from analysis.stats.verdicts import rank_test
from analysis.stats.verdicts.detectable import MOST_SEEDS
from analysis.stats.verdicts.family import MIN_SEEDS
from analysis.stats.verdicts.max_statistic import LEVEL, POWER, Array
from analysis.stats.verdicts.verdict_test import (
    BELOW_MARGIN,
    BETTER,
    SEED_WORDS,
    UNDECIDED,
    WORSE,
    Verdict,
    untested,
)

RATES = 400
"""Values of the common rate at which Boschloo's test looks for the largest probability."""
TEST = "Boschloo, solve rate"


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """Two models, and what the tests say of them before any correction."""

    names: tuple[str, str]
    counts: tuple[tuple[int, int], tuple[int, int]]
    scores: tuple[Sequence[float], Sequence[float]] | None
    """By which they are ranked; None where they are compared by counts alone."""

    @cached_property
    def p_counts(self) -> float:
        return boschloo(*self.counts)

    @cached_property
    def p_ranks(self) -> float:
        return 1.0 if self.scores is None else rank_test.rank_p(*self.scores)

    @property
    def share(self) -> float:
        """The part of the level that each test gets."""
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

    Intervals are Newcombe's, at a level that Bonferroni corrects; of all pairs, for those that are not called
    different (false coverage rate: Benjamini and Yekutieli 2005). Where ranks tell a pair apart more clearly
    than counts, ``test`` says so, and difference and interval are those of scores. Nothing is called
    equivalent.

    Args:
        counts: for each model the seeds that solved the task, and all seeds that ended.
        scores: for each model its scores, the higher the better.
        baseline: name of the model that the others are held against.
        margin: difference of scores below which ranks decide nothing.
    """
    rates = {name: solved / seeds if seeds else math.nan for name, (solved, seeds) in counts.items()}
    pairs = [(model, other) for model, other in combinations(counts, 2)]
    if baseline is None:
        pairs = [pair if rates[pair[0]] >= rates[pair[1]] else pair[::-1] for pair in pairs]
    else:
        pairs = [(model, baseline) for model in counts if model != baseline]
    enough = [pair for pair in pairs if min(counts[name][1] for name in pair) >= MIN_SEEDS]
    ranked = scores if baseline is None and len(counts) > 2 else None
    tested = [_pair(names, counts, ranked) for names in enough]
    p_values = [pair.p for pair in tested]
    if baseline is None and tested:
        p_values = stats.false_discovery_control(p_values, method="bh").tolist()
        comparisons = len(tested) / max(1, sum(p < LEVEL for p in p_values))
    else:
        p_values, comparisons = holm(p_values), float(len(tested))
    found = [_verdict(pair, p, comparisons, margin) for pair, p in zip(tested, p_values, strict=True)]
    for model, other in [pair for pair in pairs if pair not in enough]:
        fewest = min(counts[model][1], counts[other][1])
        few = untested(
            model, other, difference=rates[model] - rates[other], seeds=fewest, reason=SEED_WORDS[fewest]
        )
        found.append(few)
    return found


def _pair(
    names: tuple[str, str],
    counts: Mapping[str, tuple[int, int]],
    scores: Mapping[str, Sequence[float]] | None,
) -> _Pair:
    own = None if scores is None else (scores[names[0]], scores[names[1]])
    if own is not None:
        few = min(map(len, own)) < rank_test.MIN_SEEDS
        own = None if few or not np.isfinite([*own[0], *own[1]]).all() else own
    return _Pair(names=names, counts=(counts[names[0]], counts[names[1]]), scores=own)


def _verdict(pair: _Pair, p: float, comparisons: float, margin: float) -> Verdict:
    if p < LEVEL and pair.p_ranks < pair.p_counts:
        return _by_ranks(pair, p, comparisons, margin)
    first, second = pair.counts
    rates = (first[0] / first[1], second[0] / second[1])
    difference, comparisons = rates[0] - rates[1], comparisons / pair.share
    low, high = rate_difference_interval(first, second, 1 - LEVEL / comparisons)
    if p >= LEVEL:  # the interval is approximate, the test is exact: they must not contradict each other
        low, high = min(low, 0.0), max(high, 0.0)
    seeds = min(first[1], second[1])
    verdict = (BETTER if difference > 0 else WORSE) if p < LEVEL else UNDECIDED
    variance = rates[0] * (1 - rates[0]) / first[1] + rates[1] * (1 - rates[1]) / second[1]
    return Verdict(
        model=pair.names[0], other=pair.names[1], difference=difference, standard_error=math.sqrt(variance),
        low=low, high=high, p=p, verdict=verdict, detectable=_detectable_rate(rates[1], seeds, comparisons),
        seeds_to_decide=_seeds(*sorted(rates), comparisons), reason="", seeds=seeds, test=TEST,
    )  # fmt: skip


def _by_ranks(pair: _Pair, p: float, comparisons: float, margin: float) -> Verdict:
    """Return the verdict of a pair that ranks tell apart; ``model`` is the better one."""
    assert pair.scores is not None
    names, scores = pair.names, pair.scores
    difference, low, high = rank_test.shift_interval(*scores, LEVEL * pair.share / comparisons)
    if difference < 0:
        names, difference, low, high = names[::-1], -difference, -high, -low
    surely = difference > margin
    return Verdict(
        model=names[0], other=names[1], difference=difference,
        standard_error=math.hypot(*(np.std(own, ddof=1) / math.sqrt(len(own)) for own in scores)),
        low=low, high=high, p=p, verdict=BETTER if surely else UNDECIDED, detectable=math.nan,
        seeds_to_decide=None, reason="" if surely else BELOW_MARGIN, seeds=min(map(len, scores)),
        test=rank_test.TEST,
    )  # fmt: skip


@cache
def boschloo_table(seeds: int, other_seeds: int) -> Array:
    """Return the two-sided p-value of Boschloo's exact test (1970) for every two counts.

    ``scipy.stats.boschloo_exact`` gives the same for one table at a time, which takes long for the pairs
    of a study. Here the probability of all tables that are as extreme by Fisher's p-value is summed for 400
    values of the common rate, and the largest taken.
    """
    first, second = np.arange(seeds + 1)[:, None], np.arange(other_seeds + 1)[None, :]
    all_seeds = seeds + other_seeds
    greater = _largest_probability(stats.hypergeom.sf(first - 1, all_seeds, first + second, seeds))
    less = _largest_probability(stats.hypergeom.cdf(first, all_seeds, first + second, seeds))
    return np.asarray(np.minimum(1.0, 2 * np.minimum(greater, less)))


def _largest_probability(fisher: Array) -> Array:
    """Return for each table the largest probability, over common rates, of one as extreme by Fisher's p."""
    rates_G = np.sin(np.linspace(0, np.pi / 2, RATES)) ** 2
    (seeds, others) = (count - 1 for count in fisher.shape)
    pmf_GT = (
        stats.binom.pmf(np.arange(seeds + 1)[None, :, None], seeds, rates_G[:, None, None])
        * stats.binom.pmf(np.arange(others + 1)[None, None, :], others, rates_G[:, None, None])
    ).reshape(RATES, -1)
    order = np.argsort(fisher.ravel(), kind="stable")
    ordered = fisher.ravel()[order]
    last = np.searchsorted(ordered, ordered * (1 + 1e-12), side="right") - 1  # tables as extreme count too
    found = np.empty(len(order))
    found[order] = np.cumsum(pmf_GT[:, order], axis=1).max(axis=0)[last]
    return found.reshape(fisher.shape)


def boschloo(first: tuple[int, int], second: tuple[int, int]) -> float:
    """Return the two-sided p-value of two counts, each successes of trials."""
    return float(boschloo_table(first[1], second[1])[first[0], second[0]])


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values after Holm's step-down correction (1979), to be held against the level as they are."""
    corrected, running = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = running
    return corrected


def _power(rates: tuple[float, float], seeds: int, comparisons: float) -> float:
    """Return the probability that the test finds the difference, at the level of so many comparisons."""
    first, second = (stats.binom.pmf(np.arange(seeds + 1), seeds, rate) for rate in rates)
    found = boschloo_table(seeds, seeds) < LEVEL / comparisons
    return float(first @ found @ second)


@cache
def _detectable_rate(rate: float, seeds: int, comparisons: float) -> float:
    """Return the smallest difference from a rate that is found with 80% power; NaN where none is."""
    for step in range(5, 101, 5):
        others = [other for other in (rate + step / 100, rate - step / 100) if 0 <= other <= 1]
        if others and min(_power((other, rate), seeds, comparisons) for other in others) >= POWER:
            return step / 100
    return math.nan


@cache
def _seeds(lower: float, upper: float, comparisons: float) -> int | None:
    """Return the fewest seeds of each model that would decide the rates, as they were observed."""
    low, high = MIN_SEEDS - 1, MOST_SEEDS + 1
    while high - low > 1 and lower < upper:
        middle = (low + high) // 2
        low, high = (low, middle) if _power((lower, upper), middle, comparisons) >= POWER else (middle, high)
    return None if high > MOST_SEEDS else high
