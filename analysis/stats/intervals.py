"""Statistics over seeds: intervals, paired differences, minimum detectable differences.

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
    """Arm ``better`` against arm ``worse``, by mean, paired over the seeds both have where there are two."""

    better: str
    worse: str
    gain: float
    """Mean difference, counted so that positive favours ``better``; NaN without scores to subtract."""
    half_width: float | None
    """Half the width of its 95% t-interval, not corrected for the number of pairs."""
    n: int
    """Seeds in common; where unpaired, those of the arm that has fewer."""
    p: float
    """Two-sided t-test; Holm-corrected over the pairs that were tested together."""
    detectable: float | None
    """Smallest difference seen with 80% power at the 5% level, two-sided."""
    paired: bool = True
    """False where the arms have no two seeds in common, so that Welch's t-test stands in."""
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


def detectable_difference(error: float, freedom: float) -> float | None:
    """Smallest mean difference a two-sided t-test at the 5% level finds with 80% power.

    Args:
        error: standard error of the mean difference.
        freedom: the test's degrees of freedom, one less than the seeds where it is paired; None below one.
    """
    if freedom < 1:
        return None
    critical = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
    # The power is an average over the estimated deviation, which is chi-distributed. Averaging
    # over its quantiles agrees with the non-central t, whose tails SciPy loses for few seeds.
    quantiles = (np.arange(2000) + 0.5) / 2000
    bar = critical * np.sqrt(stats.chi2.ppf(quantiles, freedom) / freedom)

    def missing_power(shift: float) -> float:
        return float(np.mean(stats.norm.cdf(shift - bar) + stats.norm.cdf(-shift - bar))) - POWER

    return float(optimize.brentq(missing_power, 0.0, 10 * critical)) * error


def compare_arms(
    scores: Mapping[str, Mapping[int, float]], direction: str, margin: float = 0.0
) -> list[Difference]:
    """Every pair of arms, Holm-corrected over all these pairs.

    Paired by seed; arms without two seeds in common, by Welch's t-test. The arms must share one
    likelihood type and the same data, which the caller ensures.

    Args:
        scores: for each arm, its score by seed; NaN for a run that has none.
        direction: ``lower`` or ``higher``, whichever is better.
        margin: the gain above which a difference matters, in units of the score.
    """
    if direction not in ("lower", "higher"):
        raise ValueError(f"direction={direction} is neither 'lower' nor 'higher'")
    sign = 1.0 if direction == "higher" else -1.0
    pairs = [_difference(a, b, scores[a], scores[b], sign) for a, b in combinations(scores, 2)]
    tested = [i for i, pair in enumerate(pairs) if not math.isnan(pair.p)]
    for i, p in zip(tested, holm([pairs[i].p for i in tested]), strict=True):
        separated = pairs[i].n >= MIN_SEEDS and p < 1 - CONFIDENCE and pairs[i].gain > margin
        pairs[i] = replace(pairs[i], p=p, separated=separated)
    return pairs


def _difference(
    a: str, b: str, a_score: Mapping[int, float], b_score: Mapping[int, float], sign: float
) -> Difference:
    """The difference of two arms, not yet corrected; ``sign`` is 1 where higher is better, else -1."""
    common = [s for s in a_score if s in b_score and math.isfinite(a_score[s] - b_score[s])]
    firsts, seconds = ([v for v in score.values() if math.isfinite(v)] for score in (a_score, b_score))
    paired = len(common) >= 2 or min(len(firsts), len(seconds)) < 2
    if paired:
        gains = [sign * (a_score[s] - b_score[s]) for s in common]
        gain, n = mean_interval(gains).mean, len(common)
        freedom = float(n - 1)
        error = float(np.std(gains, ddof=1)) / math.sqrt(n) if n >= 2 else math.nan
    else:
        gain, n = sign * float(np.mean(firsts) - np.mean(seconds)), min(len(firsts), len(seconds))
        error, freedom = welch_error(firsts, seconds)
    half_width, p = None, math.nan
    if freedom >= 1:
        half_width = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * error
        if error > 0:
            p = float(2 * stats.t.sf(abs(gain) / error, freedom))
        else:  # no spread at all: the t statistic is infinite, or 0/0 where the arms agree exactly
            p = 0.0 if gain else 1.0
    better, worse = (b, a) if gain < 0 else (a, b)
    return Difference(
        better=better, worse=worse, gain=abs(gain), half_width=half_width, n=n, p=p, paired=paired,
        detectable=detectable_difference(error, freedom),
    )  # fmt: skip


def welch_error(firsts: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Standard error of the difference of two independent means, and its degrees of freedom (Welch 1947).

    Each has two values or more; without any spread the degrees are those of the smaller sample.
    """
    parts = [float(np.var(values, ddof=1)) / len(values) for values in (firsts, seconds)]
    below = [part**2 / (len(values) - 1) for part, values in zip(parts, (firsts, seconds), strict=True)]
    if sum(below) == 0:
        return 0.0, float(min(len(firsts), len(seconds)) - 1)
    return math.sqrt(sum(parts)), sum(parts) ** 2 / sum(below)


def wilson_interval(successes: int, n: int) -> tuple[float, float]:
    """The two-sided 95% interval of a fraction, ``successes`` of ``n`` (Wilson 1927)."""
    interval = stats.binomtest(successes, n).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)
