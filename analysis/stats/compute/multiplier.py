"""Compute multipliers: how much more training compute the baseline needs for the score of a model.

The scores of the baseline at several budgets are interpolated over the logarithm of the FLOPs. The multiplier
of a model with score s at C FLOPs is ``C_baseline(s) / C``: 2 means that the baseline needs twice the FLOPs.
Where the baseline does not reach s within its budgets, the multiplier is a bound.

Intervals come from a parametric bootstrap over seeds: the mean of a budget is drawn from Student's t
distribution with its standard error, because resampling three to five seeds would give intervals that are too
narrow.

Scores are losses: lower is better. Shapes: D draws, K budgets of a curve, G points of the grid of FLOPs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator

GRID = 64
"""Points of the interpolated curve between two budgets."""
SAME_BUDGET = 1.02
"""Maximum ratio of the FLOPs of a model and of the baseline that count as one budget."""
DRAWS = 4000
"""Draws of the bootstrap."""

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Scores of one model at increasing budgets."""

    flops: Sequence[float]
    """Training FLOPs of each budget, increasing."""
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

    def draw_means(self, draws: int, generator: np.random.Generator) -> Array:
        """Return draws (D, K) of the mean score at each budget.

        A budget with fewer than three seeds has the mean variance of the budgets with more.
        """
        assert self.replicated
        variances_K = np.array([np.var(s, ddof=1) if len(s) > 2 else np.nan for s in self.scores])
        seeds_K = np.array([len(s) for s in self.scores])
        freedom_K = np.where(seeds_K > 2, seeds_K - 1, (seeds_K[seeds_K > 2] - 1).sum())
        variances_K = np.where(np.isnan(variances_K), np.nanmean(variances_K), variances_K)
        noise_DK = generator.standard_t(freedom_K, size=(draws, len(seeds_K)))
        return np.asarray(self.means_K + noise_DK * np.sqrt(variances_K / seeds_K))


@dataclass(frozen=True, kw_only=True)
class Multiplier:
    """The compute multiplier of a model at one budget, with its confidence interval."""

    flops: float
    """The budget of the model."""
    value: float
    """The estimate; where ``bound`` is not empty, the bound itself."""
    bound: str
    """``at least`` where the baseline never reaches the score, ``at most`` where its smallest budget already
    does, else empty."""
    low: float
    high: float

    @property
    def sign(self) -> int:
        """Return 1 or -1 where the interval is above or below 1, else 0.

        An interval that begins at 1 is above it: the end is a bound, of a score that the baseline does not
        reach with the same FLOPs.
        """
        return int(self.low > 1 - 1e-9) - int(self.high < 1 + 1e-9)


@dataclass(frozen=True, kw_only=True)
class Comparison:
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
) -> Comparison:
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
    if len(baseline.flops) < 2:
        raise ValueError("a compute multiplier needs a baseline with at least two budgets")
    noise_known = model.replicated and baseline.replicated
    generator = np.random.default_rng(seed)
    grid_G, estimated_1G = _interpolate(baseline, baseline.means_K[None])
    drawn_DG, scores_DK = estimated_1G, model.means_K[None]
    if noise_known:
        _, drawn_DG = _interpolate(baseline, baseline.draw_means(draws, generator))
        scores_DK = model.draw_means(draws, generator)
    multipliers, logs_DK, estimates = [], [], []
    for flops, mean, drawn_D in zip(_matched(model, baseline), model.means_K, scores_DK.T, strict=True):
        center, bound = (part[0] for part in _invert(grid_G, estimated_1G, np.array([mean])))
        logs_D, bounds_D = _invert(grid_G, drawn_DG, drawn_D)
        low_D = np.where(bounds_D < 0, -np.inf, logs_D)
        high_D = np.where(bounds_D > 0, np.inf, logs_D)
        low, high = -math.inf, math.inf
        if noise_known:  # methods that do not interpolate between infinite values
            low = float(np.quantile(low_D, (1 - confidence) / 2, method="lower"))
            high = float(np.quantile(high_D, (1 + confidence) / 2, method="higher"))
        multipliers.append(
            Multiplier(
                flops=flops,
                value=math.exp(center) / flops,
                bound={1: "at least", -1: "at most", 0: ""}[int(bound)],
                low=math.exp(low) / flops,
                high=math.exp(high) / flops,
            )
        )
        logs_DK.append(logs_D - math.log(flops))
        estimates.append(bound == 0)
    slope, low, high = _slopes(model, multipliers, np.array(logs_DK).T, np.array(estimates), confidence)
    if not noise_known:
        low, high = -math.inf, math.inf
    return Comparison(multipliers=tuple(multipliers), slope=slope, slope_low=low, slope_high=high)


def _matched(model: Curve, baseline: Curve) -> list[float]:
    """Return the budgets of a model, each replaced by that of the baseline where they are nearly the same."""
    nearest = [min(baseline.flops, key=lambda budget: abs(math.log(budget / flops))) for flops in model.flops]
    return [
        matched if max(matched / flops, flops / matched) <= SAME_BUDGET else flops
        for matched, flops in zip(nearest, model.flops, strict=True)
    ]


def _interpolate(curve: Curve, means_DK: Array) -> tuple[Array, Array]:
    """Return the logarithm of FLOPs (G) and the best score within them (D, G), by monotone cubic pieces."""
    knots_K = np.log(np.asarray(curve.flops, dtype=np.float64))
    pieces = [np.linspace(a, b, GRID, endpoint=False) for a, b in itertools.pairwise(knots_K)]
    grid_G = np.append(np.concatenate(pieces), knots_K[-1])
    curves_DG = PchipInterpolator(knots_K, means_DK.T, axis=0)(grid_G).T
    return grid_G, np.minimum.accumulate(curves_DG, axis=1)


def _invert(grid_G: Array, curves_DG: Array, scores_D: Array) -> tuple[Array, Array]:
    """Return the logarithm of the FLOPs (D) at which each decreasing curve reaches a score.

    The second array is 1 where the curve does not reach it, -1 where it has it from the beginning, else 0.
    The first then has the end of the grid.
    """
    reached_DG = curves_DG <= scores_D[:, None]
    index_D = np.where(reached_DG.any(1), reached_DG.argmax(1), len(grid_G) - 1)
    before_D = np.maximum(index_D - 1, 0)
    rows_D = np.arange(len(curves_DG))
    above_D, below_D = curves_DG[rows_D, before_D], curves_DG[rows_D, index_D]
    with np.errstate(divide="ignore", invalid="ignore"):
        weight_D = np.clip(np.nan_to_num((above_D - scores_D) / (above_D - below_D)), 0, 1)
    logs_D = grid_G[before_D] + weight_D * (grid_G[index_D] - grid_G[before_D])
    bounds_D = np.where(reached_DG.any(1), np.where(index_D == 0, -1, 0), 1)
    logs_D = np.where(bounds_D > 0, grid_G[-1], logs_D)
    return logs_D, bounds_D


def _slopes(
    model: Curve,
    multipliers: list[Multiplier],
    logs_DK: Array,
    estimated_K: NDArray[np.bool_],
    confidence: float,
) -> tuple[float, float, float]:
    """Return the slope of log multiplier over log FLOPs and its interval, from the budgets with estimates."""
    if estimated_K.sum() < 2:
        return math.nan, math.nan, math.nan
    x_K = np.log(np.asarray(model.flops, dtype=np.float64))[estimated_K]
    centered_K = (x_K - x_K.mean()) / ((x_K - x_K.mean()) ** 2).sum()
    values_K = np.log([m.value for m in multipliers])[estimated_K]
    slopes_D = logs_DK[:, estimated_K] @ centered_K
    low, high = np.quantile(slopes_D, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(values_K @ centered_K), float(low), float(high)
