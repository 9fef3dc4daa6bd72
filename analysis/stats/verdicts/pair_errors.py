"""Standard errors of the differences between two models, and their degrees of freedom.

Axes: R (any leading axes: simulated studies; a real study has none), K (models), N (seeds), P (pairs).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Pairs = npt.NDArray[np.int64]
"""Indices of the two models of each pair, (P, 2)."""


@dataclass(frozen=True)
class PairErrors:
    """Variance of the difference of means of each pair, with its degrees of freedom; both have shape RP."""

    variance: Array
    freedom: Array

    @property
    def error(self) -> Array:
        """Return the standard error."""
        return np.sqrt(self.variance)

    def positive(self) -> PairErrors:
        """Return the same with NaN in place of a variance of 0, for which there is no test."""
        return PairErrors(np.where(self.variance > 0, self.variance, np.nan), self.freedom)


def welch(variance_RK: Array, size_K: Array, pair_P2: Pairs) -> PairErrors:
    """Return the errors from the two models of each pair (Welch 1947).

    If neither model has any spread, the variance is 0, with 1 degree of freedom.
    """
    part_RK, (a_P, b_P) = variance_RK / size_K, pair_P2.T
    variance_RP = part_RK[..., a_P] + part_RK[..., b_P]
    below_RK = part_RK**2 / (size_K - 1)
    below_RP = below_RK[..., a_P] + below_RK[..., b_P]
    with np.errstate(divide="ignore", invalid="ignore"):
        return PairErrors(variance_RP, np.nan_to_num(variance_RP**2 / below_RP, nan=1.0))


def paired(score_RKN: Array, pair_P2: Pairs) -> PairErrors:
    """Return the errors of the differences within seeds, from the two models of each pair.

    The variance is 0 if all differences are equal, up to rounding.
    """
    seeds, (a_P, b_P) = score_RKN.shape[-1], pair_P2.T
    difference_RPN = score_RKN[..., a_P, :] - score_RKN[..., b_P, :]
    rounding_R1 = 8 * np.finfo(float).eps * np.abs(score_RKN).max(axis=(-1, -2))[..., None]
    variance_RP = difference_RPN.var(axis=-1, ddof=1) / seeds
    variance_RP = np.where(np.ptp(difference_RPN, axis=-1) > rounding_R1, variance_RP, 0.0)
    return PairErrors(variance_RP, np.full(variance_RP.shape, seeds - 1.0))
