"""Verdicts on tasks that a seed solves or does not: a test of solve counts.

If training jumps, scores have two values and are not normally distributed: a test of means has a family-wise
error of up to 18% with five seeds. Boschloo's exact test of the two counts keeps its level. Against a
baseline, Holm's correction controls the family-wise error. For all pairs with five seeds, Holm's correction
could never reject; there Benjamini and Hochberg's (1995) procedure controls the false discovery rate, and the
family-wise error in studies of equal models. It needs at least 10 seeds to detect a model that always solves
the task against one with a solve rate of 30%.

Counts ignore how far models get that do not solve the task. For all pairs of more than two models, pairs
with five seeds or more are therefore also compared by ranks (``rank_test``), each test at half of the level.
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
"""Number of values of the common rate over which Boschloo's test maximises the probability."""
TEST = "Boschloo, solve rate"


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
        return 1.0 if self.scores is None else rank_test.rank_p(*self.scores)

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
    pairs = [(model, peer) for model, peer in combinations(counts, 2)]
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
    results = [_verdict(pair, p, comparisons, margin) for pair, p in zip(tested, p_values, strict=True)]
    for model, peer in [pair for pair in pairs if pair not in enough]:
        fewest = min(counts[model][1], counts[peer][1])
        few = untested(
            model, peer, difference=rates[model] - rates[peer], seeds=fewest, reason=SEED_WORDS[fewest]
        )
        results.append(few)
    return results


def _pair(
    names: tuple[str, str],
    counts: Mapping[str, tuple[int, int]],
    scores: Mapping[str, Sequence[float]] | None,
) -> _Pair:
    pair_scores = None if scores is None else (scores[names[0]], scores[names[1]])
    if pair_scores is not None:
        few = min(map(len, pair_scores)) < rank_test.MIN_SEEDS
        pair_scores = (
            None if few or not np.isfinite([*pair_scores[0], *pair_scores[1]]).all() else pair_scores
        )
    return _Pair(names=names, counts=(counts[names[0]], counts[names[1]]), scores=pair_scores)


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
        seeds_to_decide=_seeds(*sorted(rates), comparisons), reason="", seeds=seeds, test=TEST,
    )  # fmt: skip


def _by_ranks(pair: _Pair, p: float, comparisons: float, margin: float) -> Verdict:
    """Return the verdict of a pair that the rank test separates; ``model`` is the better one."""
    assert pair.scores is not None
    names, scores = pair.names, pair.scores
    difference, low, high = rank_test.shift_interval(*scores, LEVEL * pair.share / comparisons)
    if difference < 0:
        names, difference, low, high = names[::-1], -difference, -high, -low
    surely = difference > margin
    return Verdict(
        model=names[0], other=names[1], difference=difference,
        standard_error=math.hypot(*(np.std(sample, ddof=1) / math.sqrt(len(sample)) for sample in scores)),
        low=low, high=high, p=p, verdict=BETTER if surely else UNDECIDED, detectable=math.nan,
        seeds_to_decide=None, reason="" if surely else BELOW_MARGIN, seeds=min(map(len, scores)),
        test=rank_test.TEST,
    )  # fmt: skip


@cache
def boschloo_table(seeds: int, other_seeds: int) -> Array:
    """Return the two-sided p-value of Boschloo's exact test (1970) for every two counts.

    ``scipy.stats.boschloo_exact`` computes the same for one table at a time, which is slow for the pairs
    of a study. This function sums the probability of all tables that are as extreme by Fisher's p-value for
    400 values of the common rate, and returns the largest.
    """
    count_a, count_b = np.arange(seeds + 1)[:, None], np.arange(other_seeds + 1)[None, :]
    all_seeds = seeds + other_seeds
    greater = _largest_probability(stats.hypergeom.sf(count_a - 1, all_seeds, count_a + count_b, seeds))
    less = _largest_probability(stats.hypergeom.cdf(count_a, all_seeds, count_a + count_b, seeds))
    return np.asarray(np.minimum(1.0, 2 * np.minimum(greater, less)))


def _largest_probability(fisher: Array) -> Array:
    """Return for each table the probability of one as extreme by Fisher's p, maximised over common rates."""
    rates_G = np.sin(np.linspace(0, np.pi / 2, RATES)) ** 2
    (seeds_a, seeds_b) = (count - 1 for count in fisher.shape)
    pmf_GT = (
        stats.binom.pmf(np.arange(seeds_a + 1)[None, :, None], seeds_a, rates_G[:, None, None])
        * stats.binom.pmf(np.arange(seeds_b + 1)[None, None, :], seeds_b, rates_G[:, None, None])
    ).reshape(RATES, -1)
    order = np.argsort(fisher.ravel(), kind="stable")
    ordered = fisher.ravel()[order]
    end_of_ties = (
        np.searchsorted(ordered, ordered * (1 + 1e-12), side="right") - 1
    )  # includes tables that are equally extreme
    largest = np.empty(len(order))
    largest[order] = np.cumsum(pmf_GT[:, order], axis=1).max(axis=0)[end_of_ties]
    return largest.reshape(fisher.shape)


def boschloo(counts_a: tuple[int, int], counts_b: tuple[int, int]) -> float:
    """Return the two-sided p-value of two counts, each successes of trials."""
    return float(boschloo_table(counts_a[1], counts_b[1])[counts_a[0], counts_b[0]])


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values after Holm's step-down correction (1979), to be compared with the uncorrected level."""
    corrected, running = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = running
    return corrected


def _power(rates: tuple[float, float], seeds: int, comparisons: float) -> float:
    """Return the probability that the test rejects at the level corrected for ``comparisons``."""
    pmf_a, pmf_b = (stats.binom.pmf(np.arange(seeds + 1), seeds, rate) for rate in rates)
    rejected = boschloo_table(seeds, seeds) < LEVEL / comparisons
    return float(pmf_a @ rejected @ pmf_b)


@cache
def _detectable_rate(rate: float, seeds: int, comparisons: float) -> float:
    """Return the smallest difference from a rate that is detected with 80% power; NaN if there is none."""
    for step in range(5, 101, 5):
        candidates = [
            candidate for candidate in (rate + step / 100, rate - step / 100) if 0 <= candidate <= 1
        ]
        if (
            candidates
            and min(_power((candidate, rate), seeds, comparisons) for candidate in candidates) >= POWER
        ):
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
