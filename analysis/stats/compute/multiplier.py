"""Compute multipliers: how much more training compute the baseline needs for the score of a model.

The scores of the baseline at several budgets are interpolated over the logarithm of the FLOPs. The multiplier
of a model with score s at C FLOPs is ``C_baseline(s) / C``: 2 means that the baseline needs twice the FLOPs.
Where the baseline does not reach s within its budgets, the multiplier is a bound. With seconds in place of
FLOPs it is the multiplier in time.

Intervals come from a parametric bootstrap over seeds: the mean of a budget is drawn from Student's t
distribution with its standard error, because resampling three to five seeds would give intervals that are too
narrow. Their ends are far in the tails, as they are corrected for the number of models. So the baseline is
drawn from a Sobol sequence, and for each of its curves the probability that the model's mean is reached is
computed exactly: two seeds of the bootstrap agree to two digits.

Scores are losses: lower is better. Shapes: D draws, K budgets of a curve.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special
from scipy.interpolate import PchipInterpolator
from scipy.stats import qmc

SAME_BUDGET = 1.02
"""Maximum ratio of the FLOPs of a model and of the baseline that count as one budget."""
DRAWS = 100_000
"""Draws of the bootstrap, for slopes."""
CURVES = 2**14
"""Draws of the baseline from which the ends of intervals of multipliers are computed."""
TINY = 1e-12
"""Standard error of scores without any spread."""
HALVINGS = 6
"""Steps of the bisection between two budgets, before the last, linear one."""

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Scores of one model at increasing budgets."""

    flops: Sequence[float]
    """Training FLOPs of each budget, or seconds, increasing."""
    scores: Sequence[Sequence[float]]
    """Scores of the seeds at each budget."""

    def __post_init__(self) -> None:
        if len(self.flops) != len(self.scores) or not all(self.scores):
            raise ValueError("a curve needs at least one score for each budget")
        if any(later <= earlier for earlier, later in itertools.pairwise(self.flops)):
            raise ValueError(f"the budgets of a curve must increase: {list(self.flops)}")

    @property
    def means_K(self) -> Array:
        return np.array([np.mean(scores) for scores in self.scores])

    @property
    def replicated(self) -> bool:
        """Return True if a budget has at least three seeds, from which the noise can be estimated."""
        return any(len(scores) > 2 for scores in self.scores)

    @property
    def errors_K(self) -> tuple[Array, Array]:
        """Return the standard error of the mean at each budget, and its degrees of freedom.

        A budget with fewer than three seeds has the mean variance of the budgets with more.
        """
        assert self.replicated
        variances_K = np.array([np.var(s, ddof=1) if len(s) > 2 else np.nan for s in self.scores])
        seeds_K = np.array([len(s) for s in self.scores])
        freedom_K = np.where(seeds_K > 2, seeds_K - 1, (seeds_K[seeds_K > 2] - 1).sum())
        variances_K = np.where(np.isnan(variances_K), np.nanmean(variances_K), variances_K)
        return np.sqrt(variances_K / seeds_K), freedom_K

    def draw_means(self, draws: int, generator: np.random.Generator) -> Array:
        """Return draws (D, K) of the mean score at each budget: every quantile once, in another order."""
        error_K, freedom_K = self.errors_K
        noise_DK = np.stack([generator.permutation(t_quantiles(int(n), draws)) for n in freedom_K], axis=1)
        return np.asarray(self.means_K + noise_DK * error_K)

    def spread_means(self, draws: int, seed: int) -> tuple[Array, Array]:
        """Return draws (D, K) of the mean score at each budget with their weights (D), many in the tails.

        The points of a Sobol sequence, a power of 2 of them, are moved towards 0 and 1.
        """
        error_K, freedom_K = self.errors_K
        points_DK = qmc.Sobol(len(freedom_K), rng=seed).random_base2(int(math.log2(draws)))
        weights_D = (6 * points_DK * (1 - points_DK)).prod(axis=1)
        quantiles_DK = special.stdtrit(freedom_K, points_DK**2 * (3 - 2 * points_DK))
        return np.asarray(self.means_K + quantiles_DK * error_K), weights_D / weights_D.sum()


@cache
def t_quantiles(freedom: int, draws: int) -> Array:
    """Return the middle quantile of each of ``draws`` strata (D) of Student's t distribution."""
    return np.asarray(special.stdtrit(freedom, (np.arange(draws) + 0.5) / draws))


@dataclass(frozen=True, kw_only=True)
class Multiplier:
    """The compute multiplier of a model at one budget, with its confidence interval."""

    flops: float
    """The budget of the model."""
    budget: float
    """The budget of the baseline where that is nearly the same, else ``flops``."""
    value: float
    """The estimate; where ``bound`` is not empty, the bound itself."""
    bound: str
    """``at least`` where the baseline never reaches the score, ``at most`` where its smallest budget already
    does, else empty."""
    low: float
    high: float

    @property
    def sign(self) -> int:
        """Return 1 or -1 where the interval is above or below the same budget of the baseline, else 0.

        An interval that begins there is above it: the end is a bound, of a score that the baseline does not
        reach with this budget.
        """
        same = self.budget / self.flops
        return int(self.low > same * (1 - 1e-9)) - int(self.high < same * (1 + 1e-9))


@dataclass(frozen=True, kw_only=True)
class ComputeComparison:
    """Multipliers of a model at all of its budgets, and what they say together."""

    multipliers: tuple[Multiplier, ...]
    slope: float
    """Change of the logarithm of the multiplier for each decade of compute, in decades; NaN where fewer than
    two multipliers are estimates."""
    slope_low: float
    slope_high: float

    @property
    def verdict(self) -> str:
        """Return ``ahead``, ``ahead but shrinking``, ``behind``, ``crosses`` or ``undecided``.

        ``ahead`` and ``behind`` need intervals on one side of 1 at the two largest budgets. A model crosses
        if an interval is on one side of 1 at a budget, and on the other side at a larger one.
        """
        signs = [multiplier.sign for multiplier in self.multipliers]
        decided = [sign for sign in signs if sign]
        if any(later != earlier for earlier, later in itertools.pairwise(decided)):
            return "crosses"
        last = signs[-2:]
        if len(last) == 2 and last[0] == last[1] == 1:
            return "ahead but shrinking" if self.slope_high < 0 else "ahead"
        if len(last) == 2 and last[0] == last[1] == -1:
            return "behind"
        return "undecided"

    @property
    def crossing(self) -> float:
        """Return the FLOPs where the multiplier passes 1, interpolated; NaN where it does not."""
        for earlier, later in itertools.pairwise(self.multipliers):
            before, after = math.log(earlier.value), math.log(later.value)
            if before * after < 0:
                weight = before / (before - after)
                return math.exp((1 - weight) * math.log(earlier.flops) + weight * math.log(later.flops))
        return math.nan


def compare_compute(
    model: Curve, baseline: Curve, *, confidence: float = 0.95, draws: int = DRAWS, seed: int = 0
) -> ComputeComparison:
    """Return the compute multipliers of a model.

    Args:
        model: its budgets may differ from those of the baseline.
        baseline: at least two budgets.
        confidence: coverage of each interval; correct it for the number of models before.
        draws: of the bootstrap.
        seed: of the bootstrap.

    Raises:
        ValueError: the baseline has a single budget.
    """
    return Baseline(baseline, draws=draws, seed=seed).compare(model, confidence=confidence)


class Baseline:
    """A curve, with its draws, that models are compared with.

    Args:
        curve: at least two budgets.
        draws: of the bootstrap.
        seed: of the bootstrap.

    Raises:
        ValueError: the curve has a single budget.
    """

    def __init__(self, curve: Curve, *, draws: int = DRAWS, seed: int = 0) -> None:
        if len(curve.flops) < 2:
            raise ValueError("a compute multiplier needs a baseline with at least two budgets")
        self.curve, self.draws, self.seed = curve, draws, seed
        self.estimated = Inverse(curve, curve.means_K[None])
        self.drawn = self.estimated
        if curve.replicated:
            self.drawn = Inverse(curve, curve.draw_means(draws, np.random.default_rng(seed)))
            self.curves = Inverse(curve, *curve.spread_means(min(draws, CURVES), seed))

    def compare(self, model: Curve, *, confidence: float = 0.95) -> ComputeComparison:
        """Return the compute multipliers of a model; ``confidence`` is the coverage of each interval."""
        noise_known = model.replicated and self.curve.replicated
        drawn, scores_DK = self.estimated, model.means_K[None]
        if noise_known:  # of the model other draws than of the baseline
            drawn, generator = self.drawn, np.random.default_rng([self.seed, 1])
            scores_DK = model.draw_means(self.draws, generator)
        multipliers, logs_DK = [], []
        for index, (flops, mean) in enumerate(zip(model.flops, model.means_K, strict=True)):
            (center,), (bound,) = self.estimated.reach(np.array([mean]))
            low, high = -math.inf, math.inf
            if noise_known:
                error, freedom = (values_K[index] for values_K in model.errors_K)
                low, high = self.curves.interval(mean, error, freedom, confidence)
            multipliers.append(
                Multiplier(
                    flops=flops, budget=_matched(flops, self.curve), value=math.exp(center) / flops,
                    bound={1: "at least", -1: "at most", 0: ""}[int(bound)], low=math.exp(low) / flops,
                    high=math.exp(high) / flops,
                )
            )  # fmt: skip
            logs_DK.append(drawn.reach(scores_DK[:, index])[0] - math.log(flops))
        slope, low, high = _slopes(model, multipliers, np.array(logs_DK).T, confidence)
        if not noise_known:
            low, high = -math.inf, math.inf
        return ComputeComparison(multipliers=tuple(multipliers), slope=slope, slope_low=low, slope_high=high)


def _matched(flops: float, baseline: Curve) -> float:
    """Return the budget of the baseline that is nearly the same, else the budget itself."""
    nearest = min(baseline.flops, key=lambda budget: abs(math.log(budget / flops)))
    return nearest if max(nearest / flops, flops / nearest) <= SAME_BUDGET else flops


class Inverse:
    """The logarithm of the FLOPs at which curves reach a score; between budgets they are monotone cubics.

    Args:
        curve: has the budgets.
        means_DK: the score of each curve at each budget.
        weights_D: of the curves; None for equal ones.
    """

    def __init__(self, curve: Curve, means_DK: Array, weights_D: Array | None = None) -> None:
        self.weights_D = np.full(len(means_DK), 1 / len(means_DK)) if weights_D is None else weights_D
        self.knots_K = np.log(np.asarray(curve.flops, dtype=np.float64))
        self.means_DK = means_DK
        self.best_DK = np.minimum.accumulate(means_DK, axis=1)
        """The best score up to each budget."""
        self.cubics_4PD = PchipInterpolator(self.knots_K, means_DK.T, axis=0).c
        """Coefficients of each piece between two budgets, the highest power first."""

    def reach(self, scores_D: Array) -> tuple[Array, NDArray[np.int_]]:
        """Return where each curve reaches a score for the first time (D).

        The second array is 1 where the curve does not reach it, -1 where it has it from the beginning,
        else 0. The first then has the end of the curve.
        """
        reached_DK = self.means_DK <= scores_D[:, None]
        knot_D = np.where(reached_DK.any(1), reached_DK.argmax(1), len(self.knots_K))
        bounds_D = (knot_D == len(self.knots_K)).astype(int) - (knot_D == 0)
        piece_D = np.clip(knot_D - 1, 0, len(self.knots_K) - 2)
        a_D, b_D, c_D, d_D = self.cubics_4PD[:, piece_D, np.arange(len(piece_D))]
        d_D = d_D - scores_D
        left_D, width_D = np.zeros(len(piece_D)), np.diff(self.knots_K)[piece_D]
        for _ in range(HALVINGS):
            width_D = width_D / 2
            x_D = left_D + width_D
            left_D = np.where(((a_D * x_D + b_D) * x_D + c_D) * x_D + d_D > 0, x_D, left_D)
        right_D = left_D + width_D
        above_D, below_D = (((a_D * x_D + b_D) * x_D + c_D) * x_D + d_D for x_D in (left_D, right_D))
        with np.errstate(divide="ignore", invalid="ignore"):
            weight_D = np.clip(np.nan_to_num(above_D / (above_D - below_D)), 0, 1)
        logs_D = self.knots_K[piece_D] + left_D + weight_D * width_D
        ends = {1: self.knots_K[-1], -1: self.knots_K[0]}
        for bound, end in ends.items():
            logs_D = np.where(bounds_D == bound, end, logs_D)
        return logs_D, bounds_D

    def interval(self, mean: float, error: float, freedom: float, confidence: float) -> tuple[float, float]:
        """Return the ends of the interval of the logarithm of the FLOPs for an uncertain score.

        They are infinite where the curves do not reach the score, or have it from the beginning, too often.

        Args:
            mean: of the score.
            error: its standard error.
            freedom: degrees of freedom of its Student's t distribution.
            confidence: coverage of the interval.
        """
        tail = (1 - confidence) / 2

        def below(x: float) -> float:
            """Return the probability that the score is reached at x."""
            distance_D = (self.best(x) - mean) / max(error, TINY)
            return float(special.stdtr(freedom, -distance_D) @ self.weights_D)

        at_knots_K = [below(x) for x in self.knots_K]
        ends = []
        for probability, outside in ((tail, -math.inf), (1 - tail, math.inf)):
            knot = int(np.searchsorted(at_knots_K, probability))
            if knot in (0, len(at_knots_K)):
                is_bound = (knot == 0) == (outside < 0)
                ends.append(outside if is_bound else float(self.knots_K[-1 if outside < 0 else 0]))
                continue
            left, right = self.knots_K[knot - 1 : knot + 1]
            ends.append(optimize.brentq(lambda x, p=probability: below(x) - p, left, right, xtol=1e-7))
        return ends[0], ends[1]

    def best(self, x: float) -> Array:
        """Return the best score of each curve up to x (D), a logarithm of FLOPs."""
        piece = int(np.clip(np.searchsorted(self.knots_K, x) - 1, 0, len(self.knots_K) - 2))
        a_D, b_D, c_D, d_D = self.cubics_4PD[:, piece]
        t = x - self.knots_K[piece]
        return np.asarray(np.minimum(self.best_DK[:, piece], ((a_D * t + b_D) * t + c_D) * t + d_D))


def _slopes(
    model: Curve, multipliers: list[Multiplier], logs_DK: Array, confidence: float
) -> tuple[float, float, float]:
    """Return the slope of log multiplier over log FLOPs and its interval, from the budgets with estimates."""
    estimated_K = np.array([not multiplier.bound for multiplier in multipliers])
    if estimated_K.sum() < 2:
        return math.nan, math.nan, math.nan
    x_K = np.log(np.asarray(model.flops, dtype=np.float64))[estimated_K]
    centered_K = (x_K - x_K.mean()) / ((x_K - x_K.mean()) ** 2).sum()
    values_K = np.log([m.value for m in multipliers])[estimated_K]
    slopes_D = logs_DK[:, estimated_K] @ centered_K
    low, high = np.quantile(slopes_D, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(values_K @ centered_K), float(low), float(high)
