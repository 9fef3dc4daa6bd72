"""HiPPO-LegS and the state matrices that state-space layers start from.

Gu et al. 2020 (arXiv 2008.07669): a state c that follows ``c' = (A c + B f) / t``
holds the coefficients of the history of f in Legendre polynomials. S4 (Gu et al.
2022, arXiv 2111.00396) uses A and drops the 1 / t; S4D (Gu et al. 2022, arXiv
2206.11893) replaces it by a diagonal matrix.

All are computed in float64. Of each complex conjugate pair, only the one with
a positive imaginary part is stored.

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


def hippo_legt(size: int) -> Tensor:
    """The HiPPO-LegT state matrix, float64 (arXiv 2008.07669, theorem 1): a window of length 1.

    -sqrt((2n+1)(2k+1)), with the sign (-1)^(n-k) above the diagonal.
    """
    n = torch.arange(size, dtype=torch.float64)
    root = (2 * n + 1).sqrt()
    sign = (1 - 2 * ((n[:, None] - n) % 2)).triu(1) + torch.ones(size, size, dtype=torch.float64).tril()
    return -torch.outer(root, root) * sign


def hippo_fourier(size: int) -> Tensor:
    """The HiPPO-FouT state matrix, float64 (Gu et al. 2022, arXiv 2206.12037): cosines and sines in turn.

    A rotation by 2 pi n for each n, less ones between all cosines and between all sines.
    """
    rotation = torch.zeros(size, dtype=torch.float64)
    rotation[::2] = 2 * math.pi * torch.arange(size // 2, dtype=torch.float64)
    turns = torch.diag(rotation[:-1], 1) - torch.diag(rotation[:-1], -1)
    n = torch.arange(size)
    return turns - ((n[:, None] - n) % 2 == 0).double()


def _alternating(row: Tensor) -> Tensor:
    """Two rows (2, N): the odd entries of one, and the even entries."""
    odd = torch.arange(len(row)) % 2 == 1
    return torch.stack([row * odd, row * ~odd])


def legs_nplr(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """HiPPO-LegS in the basis that diagonalizes its normal part: eigenvalues (M), P (1, M) and B (M).

    There A = diag(eigenvalues) - P^T conj(P) (arXiv 2111.00396, theorem 1), where eigenvalues, P and B, all
    complex128, represent themselves and their conjugates.
    """
    imaginary, vectors = torch.linalg.eigh(_legs_skew(size) * -1j)
    selected = vectors[:, size // 2 :]
    B_M = selected.mH @ hippo_legs_input(size).to(torch.complex128)
    real = torch.full((size // 2,), -0.5, dtype=torch.float64)
    return torch.complex(real, imaginary[size // 2 :]), B_M[None] / math.sqrt(2), B_M


def legt_nplr(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """HiPPO-LegT likewise, of rank 2; its normal part has eigenvalues without real parts."""
    root = hippo_legs_input(size)
    return _nplr(hippo_legt(size), _alternating(root), root)


def fourier_nplr(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """HiPPO-FouT likewise, of rank 2; its input feeds the cosines."""
    one = torch.ones(size, dtype=torch.float64)
    return _nplr(hippo_fourier(size), _alternating(one), _alternating(one)[1])


def _nplr(A_NN: Tensor, P_RN: Tensor, B_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues (M), P (R, M) and B (M) in the basis of the eigenvectors of a skew A + sum of P P^T."""
    half = len(B_N) // 2
    imaginary, vectors = torch.linalg.eigh((A_NN + P_RN.mT @ P_RN) * -1j)
    if imaginary[half] < 1e-9:  # a pair of zeros: any two conjugate vectors of its plane
        plane = vectors[:, half - 1 : half + 1]
        basis = torch.linalg.eigh((plane @ plane.mH).real).eigenvectors[:, -2:]
        vectors[:, half] = torch.complex(basis[:, 0], basis[:, 1]) / math.sqrt(2)
    selected = vectors[:, half:]
    imaginary_M = imaginary[half:].clamp_min(0.0)
    eigenvalues_M = torch.complex(torch.zeros_like(imaginary_M), imaginary_M)
    return eigenvalues_M, (selected.mH @ P_RN.mT.to(selected)).mT, selected.mH @ B_N.to(selected)


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

    As in the authors' code the values stay complex: only their start is on the real axis.
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

NPLR = {"legs": legs_nplr, "legt": legt_nplr, "fourier": fourier_nplr}
"""The matrices that are diagonal less one of low rank, by the name of the initialisation."""
HIPPO = {"legs": hippo_legs, "legt": hippo_legt, "fourier": hippo_fourier}
"""The same matrices as HiPPO has them."""
