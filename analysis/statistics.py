"""How sure we are: intervals over seeds, paired differences, what could have been seen.

Everything is built on Student's t. A percentile bootstrap covers 77% instead of
95% at three seeds; the t-interval covers 95% at every number of seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from scipy import optimize, stats

CONFIDENCE = 0.95
POWER = 0.80
MIN_SEEDS = 3
"""Fewer seeds than this and nothing is called better."""

SHARES = ("answer_accuracy", "accuracy", "macro_f1", "matthews", "entity_f1", "tag_accuracy", "exact_match")
MARGINS = {"bits_per_byte": 0.002, "pearson": 0.01, "spearman": 0.01, **dict.fromkeys(SHARES, 0.01)}
"""A difference must also exceed this to be called one; 0 for metrics not listed."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over seeds with its two-sided 95% t-interval."""

    mean: float
    half_width: float | None
    """Half the interval's width; None with fewer than two values."""
    n: int


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Arm ``better`` against arm ``worse``, by mean, over the seeds both have."""

    better: str
    worse: str
    gain: float
    """Mean paired difference, counted so that positive favours ``better``; NaN without common seeds."""
    half_width: float | None
    """Half the width of its 95% t-interval, not corrected for the number of pairs."""
    n: int
    p: float
    """Two-sided paired t-test; Holm-corrected over the pairs that were tested together."""
    detectable: float | None
    """Smallest difference seen with 80% power at the 5% level, two-sided."""
    separated: bool = False
    """At least three seeds, p < 0.05 after Holm, and a gain above the margin."""


def mean_interval(values: Sequence[float]) -> Estimate:
    """Mean and 95% t-interval. NaN values are the caller's to leave out; no values give a NaN mean."""
    n = len(values)
    if n < 2:
        return Estimate(mean=float(values[0]) if n else math.nan, half_width=None, n=n)
    error = float(np.std(values, ddof=1)) / math.sqrt(n)
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))
    return Estimate(mean=float(np.mean(values)), half_width=quantile * error, n=n)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (Holm 1979): p-values to be held against the level as they are."""
    corrected, running = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = running
    return corrected


def detectable_difference(deviation: float, n: int) -> float | None:
    """Smallest mean difference a paired t-test on ``n`` seeds finds with 80% power, 5% two-sided.

    Args:
        deviation: standard deviation of the paired differences.
        n: seeds; fewer than two give None.
    """
    if n < 2:
        return None
    critical = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))
    # The power is an average over the estimated deviation, which is chi-distributed. Averaging
    # over its quantiles agrees with the non-central t, whose tails SciPy loses for few seeds.
    quantiles = (np.arange(2000) + 0.5) / 2000
    bar = critical * np.sqrt(stats.chi2.ppf(quantiles, n - 1) / (n - 1))

    def missing_power(shift: float) -> float:
        return float(np.mean(stats.norm.cdf(shift - bar) + stats.norm.cdf(-shift - bar))) - POWER

    shift = optimize.brentq(missing_power, 0.0, 10 * critical)
    return float(shift) * deviation / math.sqrt(n)


def compare_arms(
    scores: Mapping[str, Mapping[int, float]], direction: str, margin: float = 0.0
) -> list[Difference]:
    """Every pair of arms by paired seed differences, Holm-corrected over all these pairs.

    The arms must share one likelihood class and the same data; that is the
    caller's to see to.

    Args:
        scores: for each arm, its score by seed; NaN for a run that has none.
        direction: ``lower`` or ``higher``, whichever is better.
        margin: the gain above which a difference matters, in units of the score.
    """
    if direction not in ("lower", "higher"):
        raise ValueError(f"direction={direction} is neither 'lower' nor 'higher'")
    sign = 1.0 if direction == "higher" else -1.0
    pairs = [_paired(a, b, scores[a], scores[b], sign) for a, b in combinations(scores, 2)]
    tested = [i for i, pair in enumerate(pairs) if pair.n >= 2]
    for i, p in zip(tested, holm([pairs[i].p for i in tested]), strict=True):
        separated = pairs[i].n >= MIN_SEEDS and p < 1 - CONFIDENCE and pairs[i].gain > margin
        pairs[i] = replace(pairs[i], p=p, separated=separated)
    return pairs


def _paired(
    a: str, b: str, a_score: Mapping[int, float], b_score: Mapping[int, float], sign: float
) -> Difference:
    """The difference of two arms, not yet corrected; ``sign`` is 1 where higher is better, else -1."""
    seeds = [s for s in a_score if s in b_score and math.isfinite(a_score[s] - b_score[s])]
    gains = [sign * (a_score[s] - b_score[s]) for s in seeds]
    estimate = mean_interval(gains)
    if estimate.mean < 0:
        a, b, gains = b, a, [-g for g in gains]
    p, detectable = math.nan, None
    if estimate.n >= 2:
        deviation = float(np.std(gains, ddof=1))
        detectable = detectable_difference(deviation, estimate.n)
        if deviation > 0:
            p = float(2 * stats.t.sf(abs(estimate.mean) / deviation * math.sqrt(estimate.n), estimate.n - 1))
        else:  # no spread at all: the t statistic is infinite, or 0/0 where the arms agree exactly
            p = 0.0 if estimate.mean else 1.0
    return Difference(
        better=a, worse=b, gain=abs(estimate.mean), half_width=estimate.half_width,
        n=estimate.n, p=p, detectable=detectable,
    )  # fmt: skip


def wilson_interval(successes: int, n: int) -> tuple[float, float]:
    """The two-sided 95% interval of a share, ``successes`` of ``n`` (Wilson 1927)."""
    interval = stats.binomtest(successes, n).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)
