"""HiPPO-LegS and the state matrices that state-space layers start from.

Gu et al. 2020 (arXiv 2008.07669): a state c that follows ``c' = (A c + B f) / t``
holds the coefficients of the history of f in Legendre polynomials. S4 (Gu et al.
2022, arXiv 2111.00396) keeps A and drops the 1 / t; S4D (Gu et al. 2022, arXiv
2206.11893) keeps a diagonal matrix in its place.

All are made in float64. Of each conjugate pair of complex numbers the one with
the positive imaginary part is kept.

Shapes: N state of the real system, M = N / 2 conjugate pairs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def hippo_legs(size: int) -> Tensor:
    """The HiPPO-LegS state matrix, float64: -sqrt((2n+1)(2k+1)) below the diagonal, -(n+1) on it."""
    n = torch.arange(size, dtype=torch.float64)
    root = (2 * n + 1).sqrt()
    return -(torch.outer(root, root).tril(-1) + torch.diag(n + 1))


def hippo_legs_input(size: int) -> Tensor:
    """The HiPPO-LegS input vector B (N): sqrt(2n+1)."""
    return (2 * torch.arange(size, dtype=torch.float64) + 1).sqrt()


def _legs_skew(size: int) -> Tensor:
    """A + P P^T + 1/2 with P = sqrt(n + 1/2): skew-symmetric (arXiv 2111.00396, appendix C.1)."""
    root = (torch.arange(size, dtype=torch.float64) + 0.5).sqrt()
    return hippo_legs(size) + torch.outer(root, root) + 0.5 * torch.eye(size, dtype=torch.float64)


def legs_eigenvalues(size: int) -> Tensor:
    """Eigenvalues (M), complex128, of the normal part of HiPPO-LegS: S4D-LegS.

    A + P P^T is -1/2 plus a skew-symmetric matrix, so its eigenvalues have real part -1/2.
    """
    imaginary = torch.linalg.eigvalsh(_legs_skew(size) * -1j)
    return torch.complex(torch.full((size // 2,), -0.5, dtype=torch.float64), imaginary[size // 2 :])


def legs_nplr(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """HiPPO-LegS in the basis that makes its normal part diagonal: eigenvalues, P and B, each (M) complex128.

    There A = diag(eigenvalues) - P P^* (arXiv 2111.00396, theorem 1), where eigenvalues, P and B
    stand for themselves and their conjugates.
    """
    imaginary, vectors = torch.linalg.eigh(_legs_skew(size) * -1j)
    kept = vectors[:, size // 2 :]
    B_M = kept.mH @ hippo_legs_input(size).to(torch.complex128)
    real = torch.full((size // 2,), -0.5, dtype=torch.float64)
    return torch.complex(real, imaginary[size // 2 :]), B_M / math.sqrt(2), B_M


def inv_eigenvalues(size: int) -> Tensor:
    """S4D-Inv (arXiv 2206.11893, section 4): -1/2 + i N/pi (N/(2n+1) - 1), an approximation of S4D-LegS."""
    n = torch.arange(size // 2, dtype=torch.float64)
    return torch.complex(torch.full_like(n, -0.5), size / math.pi * (size / (2 * n + 1) - 1))


def lin_eigenvalues(size: int) -> Tensor:
    """S4D-Lin (arXiv 2206.11893, section 4): -1/2 + i pi n, the frequencies of a Fourier series."""
    n = torch.arange(size // 2, dtype=torch.float64)
    return torch.complex(torch.full_like(n, -0.5), math.pi * n)


def real_eigenvalues(size: int) -> Tensor:
    """S4D-Real (arXiv 2206.11893, section 4): -(n+1), decay without oscillation.

    As in the authors' code the numbers stay complex: only their start is on the real axis.
    """
    n = torch.arange(size // 2, dtype=torch.float64)
    return torch.complex(-(n + 1), torch.zeros_like(n))


EIGENVALUES = {
    "legs": legs_eigenvalues,
    "inv": inv_eigenvalues,
    "lin": lin_eigenvalues,
    "real": real_eigenvalues,
}
"""The diagonal state matrices, by the name of the initialisation."""
