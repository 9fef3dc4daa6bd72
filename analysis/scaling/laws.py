"""The scaling law loss = E + A N^-alpha + B D^-beta (Hoffmann et al. 2022, arXiv 2203.15556, approach 3).

Points are a DataFrame with the columns ``size`` (parameters N), ``tokens`` (D), ``flops`` (of the training so
far) and ``loss``. It has a row for each run, or for each budget of a run, with the run in the column ``run``.

The fit minimises the sum of Huber losses on the residuals of log loss, by variable projection: at fixed
exponents the other three constants are linear, so they are solved for and the search is over two variables
instead of five. On the published points every start we tried reaches the same minimum; the usual search over
all five constants often does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import optimize

HUBER = 1e-3
"""Threshold of the Huber loss on residuals of log loss: quadratic below, linear above."""
EXPONENTS = (0.01, 2.0)
"""Bounds of alpha and beta; a fit that ends on a bound has not determined the exponent."""
STARTS = ((0.2, 0.2), (0.5, 0.5), (0.8, 0.2), (0.2, 0.8))
MIN_POINTS = 6
"""Smallest number of points for the law: its number of constants, plus 1."""
SAME_BUDGET = 1.1
"""Maximum ratio of the FLOPs of runs that count as one budget."""


@dataclass(frozen=True, kw_only=True)
class Law:
    """A fitted law, with its predictions for training with ``factor`` FLOPs per parameter and token."""

    E: float
    """Irreducible loss, the limit for infinite size and data."""
    A: float
    B: float
    alpha: float
    beta: float
    factor: float = 6.0
    """FLOPs per parameter and token: the geometric mean over the points; 6 is the usual rule."""

    @property
    def exponent(self) -> float:
        """Return a in N* proportional to C^a; the exponent of D* is 1 - a."""
        return self.beta / (self.alpha + self.beta)

    @property
    def bounded(self) -> bool:
        """Return False if a constant is zero or an exponent on its bound: the points do not determine it."""
        inside = all(EXPONENTS[0] * 1.001 < x < EXPONENTS[1] * 0.999 for x in (self.alpha, self.beta))
        return inside and self.A > 0 and self.B > 0

    def loss(self, size: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return np.asarray(self.E + self.A * size**-self.alpha + self.B * tokens**-self.beta)

    def optimum(self, flops: float) -> tuple[float, float]:
        """Return the size and tokens with the lowest loss for a budget; NaN if the law is not ``bounded``."""
        if not self.bounded:
            return math.nan, math.nan
        product = flops / self.factor
        ratio = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
        size = ratio * product**self.exponent
        return size, product / size

    def frontier(self, flops: float) -> float:
        """Return the lowest loss for a budget."""
        size, tokens = self.optimum(flops)
        return float(self.loss(np.array(size), np.array(tokens)))

    def flops_to(self, loss: float) -> float:
        """Return the smallest budget with this loss at its optimum; NaN at or below E."""
        excess = loss - self.E
        if excess <= 0 or not self.bounded:
            return math.nan
        # At the optimum alpha A N^-alpha = beta B D^-beta, which determines both terms of the excess.
        size = (self.A * (1 + self.alpha / self.beta) / excess) ** (1 / self.alpha)
        tokens = (self.B * (1 + self.beta / self.alpha) / excess) ** (1 / self.beta)
        return self.factor * size * tokens


def objective(law: Law, points: pd.DataFrame) -> float:
    """Return the sum of Huber losses on the residuals of log loss, which the fit minimises."""
    predicted = law.loss(points["size"].to_numpy(), points["tokens"].to_numpy())
    return _huber(np.log(predicted / points["loss"].to_numpy()))


def drop_highest(points: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return the points without the ``count`` highest losses (Epoch's refit of published points drops 5)."""
    return points.sort_values("loss", kind="stable").iloc[: len(points) - count]


def fit_law(points: pd.DataFrame, starts: Sequence[tuple[float, float]] = STARTS) -> Law:
    """Return the law with the lowest ``objective``.

    Args:
        points: at least six, with at least three different sizes and three different token counts.
        starts: initial exponents; the best of the resulting fits is returned.

    Raises:
        ValueError: too few points, or values that are not positive.
    """
    columns = points[["size", "tokens", "loss", "flops"]]
    if len(points) < MIN_POINTS or points["size"].nunique() < 3 or points["tokens"].nunique() < 3:
        raise ValueError(
            f"{len(points)} points of {points['size'].nunique()} sizes and {points['tokens'].nunique()} "
            f"numbers of tokens: a fit takes {MIN_POINTS} points, 3 sizes and 3 numbers of tokens"
        )
    if not (np.isfinite(columns).all(axis=None) and (columns > 0).all(axis=None)):
        raise ValueError("sizes, tokens, FLOPs and losses must be positive finite numbers")
    problem = _Projection(points)
    ends = [
        optimize.minimize(
            problem.value_and_gradient, start, jac=True, method="L-BFGS-B", bounds=[EXPONENTS] * 2,
            options={"ftol": 1e-13, "gtol": 1e-7},
        )
        for start in starts
    ]  # fmt: skip
    alpha, beta = min(ends, key=lambda end: end.fun).x
    E, A, B = problem.solve(alpha, beta)[0]
    factor = float(np.exp(np.log(points["flops"] / (points["size"] * points["tokens"])).mean()))
    scaled = (A * problem.size_unit**alpha, B * problem.tokens_unit**beta)
    return Law(
        E=float(E), A=float(scaled[0]), B=float(scaled[1]), alpha=float(alpha), beta=float(beta),
        factor=factor,
    )  # fmt: skip


class _Projection:
    """The objective as a function of the two exponents. Units near 1 keep it well conditioned."""

    def __init__(self, points: pd.DataFrame) -> None:
        size, tokens = points["size"].to_numpy(float), points["tokens"].to_numpy(float)
        self.size_unit, self.tokens_unit = np.exp(np.log(size).mean()), np.exp(np.log(tokens).mean())
        self.log_size, self.log_tokens = np.log(size / self.size_unit), np.log(tokens / self.tokens_unit)
        self.loss = points["loss"].to_numpy(float)

    def solve(self, alpha: float, beta: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the optimal E, A, B at these exponents, their columns (N, 3), and the residuals (N,)."""
        columns = np.stack(
            [np.ones_like(self.loss), np.exp(-alpha * self.log_size), np.exp(-beta * self.log_tokens)], axis=1
        )
        constants, _ = optimize.nnls(columns / self.loss[:, None], np.ones_like(self.loss))
        previous = math.inf
        for _ in range(500):
            predicted = columns @ constants
            residuals = np.log(predicted / self.loss)
            value = _huber(residuals)
            if previous - value <= 1e-11 * value:
                break
            previous = value
            # Least squares on the linearised logarithm, weighted so that its gradient is Huber's.
            weights = np.sqrt(np.minimum(1.0, HUBER / np.maximum(np.abs(residuals), 1e-300)))
            constants, _ = optimize.nnls(
                columns * (weights / predicted)[:, None], weights * (1 - residuals), maxiter=100
            )
        return constants, columns, residuals

    def value_and_gradient(self, exponents: np.ndarray) -> tuple[float, np.ndarray]:
        """Return both in units of ``HUBER``. Derivatives by the constants vanish at their optimum."""
        constants, columns, residuals = self.solve(*exponents)
        slope = np.clip(residuals, -HUBER, HUBER) / (columns @ constants)
        gradient = [
            -(slope * constants[1] * columns[:, 1] * self.log_size).sum(),
            -(slope * constants[2] * columns[:, 2] * self.log_tokens).sum(),
        ]
        return _huber(residuals) / HUBER, np.array(gradient) / HUBER


def _huber(residuals: np.ndarray) -> float:
    size = np.abs(residuals)
    return float(np.where(size <= HUBER, size**2 / 2, HUBER * (size - HUBER / 2)).sum())


def bootstrap_laws(points: pd.DataFrame, draws: int, seed: int = 0) -> list[Law]:
    """Return the laws of ``draws`` bootstrap samples; samples too uniform for a fit are drawn again.

    Runs are resampled if there is a column ``run``, else points.
    """
    law, random = fit_law(points), np.random.default_rng(seed)
    runs = points["run"] if "run" in points else pd.Series(points.index, index=points.index)
    members = [np.flatnonzero(runs == run) for run in runs.unique()]
    laws: list[Law] = []
    while len(laws) < draws:
        drawn = random.integers(len(members), size=len(members))
        sample = points.iloc[np.concatenate([members[i] for i in drawn])]
        if sample["size"].nunique() >= 3 and sample["tokens"].nunique() >= 3 and len(sample) >= MIN_POINTS:
            laws.append(fit_law(sample, [(law.alpha, law.beta)]))
    return laws


def band(values: Sequence[float]) -> tuple[float, float]:
    """Return the middle 95% of bootstrap values; NaN if more than 5% of them are NaN."""
    finite = [v for v in values if math.isfinite(v)]
    if len(finite) < 0.95 * len(values) or not finite:
        return math.nan, math.nan
    low, high = np.percentile(finite, [2.5, 97.5])
    return float(low), float(high)


def compute_ratio(law: Law, reference: Law, loss: float) -> float:
    """Return how many times fewer FLOPs ``law`` needs for a loss than ``reference``, at optimal sizes."""
    return reference.flops_to(loss) / law.flops_to(loss)


def held_out(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points of the largest budget with ``predicted`` from smaller budgets, and ``error``.

    The largest budget consists of the 10% of the points with the most FLOPs and all points within 10% of
    these. ``error`` is the predicted divided by the true loss, minus one.
    """
    smallest = points["flops"].nlargest(max(1, len(points) // 10)).min() / SAME_BUDGET
    fitted, largest = points[points["flops"] < smallest], points[points["flops"] >= smallest]
    law = fit_law(fitted)
    predicted = law.loss(largest["size"].to_numpy(), largest["tokens"].to_numpy())
    return largest.assign(predicted=predicted, error=predicted / largest["loss"] - 1)
