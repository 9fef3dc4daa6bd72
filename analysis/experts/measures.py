"""Measures of the choices of routers, as defined by OLMoE (arXiv 2409.02060, section 5).

Choices are the experts (N, K) of N tokens; -1 means no expert, if experts choose tokens.

Shapes: N tokens, K choices of a token, X experts, G groups of tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MIN_OCCURRENCES = 10
"""Minimum number of occurrences of a vocabulary token in the tables."""

Choices = NDArray[np.integer]


def visits(expert_NK: Choices, num_experts: int) -> NDArray[np.bool_]:
    """Return whether each token chose each expert (N, X)."""
    visits_NX = np.zeros((len(expert_NK), num_experts + 1), dtype=bool)
    np.put_along_axis(visits_NX, np.where(expert_NK < 0, num_experts, expert_NK), True, axis=1)
    return visits_NX[:, :num_experts]


def saturation(then_NK: Choices, final_NK: Choices, num_experts: int) -> float:
    """Return the fraction of a token's final experts that it had chosen earlier; by chance, k/X.

    This is the size of the intersection of the two sets of k experts divided by k, averaged over tokens.
    """
    final_NX = visits(final_NK, num_experts)
    return float((visits(then_NK, num_experts) & final_NX).sum() / final_NX.sum())


def coactivation(visits_NX: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return N_ij / N_i (X, X), the fraction of expert i's tokens that also chose j; NaN for i = j."""
    count_XX = visits_NX.T.astype(np.float64) @ visits_NX.astype(np.float64)
    share_XX = _ratio(count_XX, np.diag(count_XX)[:, None])
    np.fill_diagonal(share_XX, np.nan)
    return share_XX


def specialisation(
    visits_NX: NDArray[np.bool_], group_N: NDArray[np.integer], num_groups: int
) -> NDArray[np.float64]:
    """Return N_{X,G} / N_G (G, X), the fraction of a group's tokens that chose each expert; by chance, k/X.

    Groups are domains, tokens of the vocabulary or word classes. NaN for a group without tokens.
    """
    count_GX = np.zeros((num_groups, visits_NX.shape[1]))
    np.add.at(count_GX, group_N, visits_NX)
    return _ratio(count_GX, np.bincount(group_N, minlength=num_groups)[:, None])


def composition(
    visits_NX: NDArray[np.bool_], group_N: NDArray[np.integer], num_groups: int
) -> NDArray[np.float64]:
    """Return N_{X,G} / N_X (G, X), the fraction of an expert's tokens in each group; NaN without tokens."""
    count_GX = np.zeros((num_groups, visits_NX.shape[1]))
    np.add.at(count_GX, group_N, visits_NX)
    return _ratio(count_GX, visits_NX.sum(0)[None])


def chance(visits_NX: NDArray[np.bool_]) -> float:
    """Return k/X, the expected fraction of tokens of each expert under random routing."""
    return float(visits_NX.mean())


def _ratio(count: NDArray[np.float64], total: NDArray[np.number]) -> NDArray[np.float64]:
    """Return the quotient, NaN if the total is zero."""
    return np.divide(
        count, total, out=np.full(count.shape, np.nan), where=np.broadcast_to(total > 0, count.shape)
    )
