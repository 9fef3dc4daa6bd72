"""Distribution of the largest |t| of a family of comparisons, with its quantiles and power.

The family is all pairs of models (Tukey's studentized range, ``scipy.stats.studentized_range``), every model
against a baseline (Dunnett's multivariate t, which ``scipy.stats.dunnett`` does not expose) or one comparison
(Student's t). SciPy integrates numerically for each value, which needs seconds for the 630 pairs
of 36 models; this module tabulates one integral over the normal part, and caches quantiles.

Shapes: F degrees of freedom, D nodes of the estimated deviation.
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt
from scipy import interpolate, special, stats

Array = npt.NDArray[np.float64]

LEVEL = 0.05
POWER = 0.80
NODES = 96
"""Points at which the distribution of the estimated deviation is evaluated."""
STEPS = 50
"""Steps of the bisection for a quantile."""

_FREEDOMS = (*(1 / np.linspace(1, 1 / 60, 100)).tolist(), 80.0, 120.0, 200.0, 400.0, 1000.0, 10_000.0, 1e6)
"""Degrees of freedom at which quantiles are tabulated; values between them are interpolated in 1/f."""
_MOST = 40.0
"""Largest tabulated |t| for a known deviation."""


class MaxStatistic:
    """Null distribution of the largest |t| of a family with one estimate of the standard deviation."""

    def __init__(self, points: Array, cumulative: Array) -> None:
        """Store P(max |t| <= point) at each point, for a known deviation (infinite degrees of freedom)."""
        self._points, self._tail = points, 1 - cumulative
        self._quantiles: dict[tuple[float, float], interpolate.PchipInterpolator] = {}

    def p_value(self, t: Array | float, freedom: Array | float) -> Array:
        """Return P(max |t| > t), elementwise: the p-value corrected for the family."""
        t, freedom = np.broadcast_arrays(np.abs(np.asarray(t, float)), np.asarray(freedom, float))
        distinct, inverse = np.unique(freedom.ravel(), return_inverse=True)
        deviations_FD, weights_D = _deviations(tuple(distinct.tolist()))
        tails = np.interp(t.ravel()[:, None] * deviations_FD[inverse], self._points, self._tail)
        return (tails @ weights_D).reshape(t.shape)

    def critical(self, freedom: Array | float, level: float = LEVEL) -> Array:
        """Return the |t| that the largest of the family exceeds with probability ``level``."""
        return self._interpolated(freedom, level, 0.0)

    def detectable_shift(self, freedom: Array | float, factor: float = 1.0, level: float = LEVEL) -> Array:
        """Return the true difference, in standard errors, that one comparison finds with 80% power.

        Args:
            freedom: degrees of freedom of the standard error.
            factor: divisor of |t| before it is compared with ``critical``.
            level: family-wise error.
        """
        return self._interpolated(freedom, level, factor)

    def _interpolated(self, freedom: Array | float, level: float, factor: float) -> Array:
        """Return ``detectable_shift``, or with a factor of 0 ``critical``, from a table."""
        if (level, factor) not in self._quantiles:
            values = self._tabulate(factor, level)
            self._quantiles[level, factor] = interpolate.PchipInterpolator(
                1 / np.array(_FREEDOMS[::-1]), np.log(values[::-1])
            )
        inverse = 1 / np.clip(np.asarray(freedom, float), _FREEDOMS[0], _FREEDOMS[-1])
        return np.asarray(np.exp(self._quantiles[level, factor](inverse)))

    def _tabulate(self, factor: float, level: float) -> Array:
        """Find the values (F,) of a table by bisection, averaged over the chi-distributed deviation."""
        deviations_FD, weights_D = _deviations(_FREEDOMS)
        low, high = np.zeros(len(_FREEDOMS)), np.full(len(_FREEDOMS), 1000.0 if factor else 400.0)
        bar_FD = (
            factor * self.critical(np.array(_FREEDOMS), level)[:, None] * deviations_FD if factor else None
        )
        for _ in range(STEPS):
            middle = (low + high) / 2
            if bar_FD is None:
                tails = np.interp(middle[:, None] * deviations_FD, self._points, self._tail)
                too_low = tails @ weights_D > level
            else:
                power = special.ndtr(middle[:, None] - bar_FD) + special.ndtr(-middle[:, None] - bar_FD)
                too_low = power @ weights_D < POWER
            low, high = np.where(too_low, middle, low), np.where(too_low, high, middle)
        return (low + high) / 2


@lru_cache(maxsize=64)
def _deviations(freedoms: tuple[float, ...]) -> tuple[Array, Array]:
    """Return quantiles (F, D) of the estimated deviation, and their weights (D,).

    The nodes are denser for small estimates, because small deviations determine the tail.
    """
    nodes_D, weights_D = np.polynomial.legendre.leggauss(NODES)
    nodes_D, weights_D = (nodes_D + 1) / 2, weights_D / 2
    freedom_F1 = np.array(freedoms)[:, None]
    chi2_FD = stats.chi2.ppf(nodes_D**4, freedom_F1)
    return np.sqrt(chi2_FD / freedom_F1), weights_D * 4 * nodes_D**3


def _grid() -> tuple[Array, Array, Array]:
    """Return the points of |t|, and nodes and weights of the standard normal."""
    points = np.concatenate([np.linspace(0, 8, 1601), np.linspace(8.1, _MOST, 200)])
    z = np.linspace(-8, 8, 641)
    return points, z, stats.norm.pdf(z) * (z[1] - z[0])


@lru_cache(maxsize=64)
def all_pairs(models: int) -> MaxStatistic:
    """Return the distribution for all pairs of ``models`` models (Tukey; Kramer for unequal sizes)."""
    points, z, weights = _grid()
    between = special.ndtr(z) - special.ndtr(z - np.sqrt(2) * points[:, None])
    return MaxStatistic(points, np.minimum(1.0, models * between ** (models - 1) @ weights))


@lru_cache(maxsize=64)
def against_baseline(sizes: tuple[int, ...], baseline: int) -> MaxStatistic:
    """Return the distribution for multiple models against a baseline (Dunnett 1955).

    Args:
        sizes: seeds of each model, without the baseline.
        baseline: seeds of the baseline.
    """
    points, z, weights = _grid()
    inside = np.ones((len(points), len(z)))
    for size in sorted(set(sizes)):
        shared = np.sqrt(size / (size + baseline))
        independent = np.sqrt(1 - shared**2)
        upper = (shared * z + points[:, None]) / independent
        lower = (shared * z - points[:, None]) / independent
        inside *= (special.ndtr(upper) - special.ndtr(lower)) ** sizes.count(size)
    return MaxStatistic(points, np.minimum(1.0, inside @ weights))


@cache
def one_comparison() -> MaxStatistic:
    """Return the distribution of a single |t| (Student)."""
    points, _, _ = _grid()
    return MaxStatistic(points, 2 * special.ndtr(points) - 1)
