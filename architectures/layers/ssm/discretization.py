"""From a differential equation to a recurrence: zero-order hold, the bilinear transform, Euler.

``x' = A x + B u`` becomes ``x_t = A_bar x_(t-1) + B_bar u_t`` at the step dt:

* zero-order hold, exact where u is constant between samples: A_bar = exp(dt A), B_bar = (A_bar - 1) B / A;
* the generalised bilinear transform, which evaluates the right-hand side at a mixture of
  both ends with weight alpha on the new one: A_bar = (1 - alpha dt A)^-1 (1 + (1 - alpha) dt A),
  B_bar = (1 - alpha dt A)^-1 dt B. alpha 1/2 is the bilinear transform (Tustin), alpha 0 is Euler.

Gu et al. 2021 (arXiv 2110.13985); the bilinear transform in S4 (arXiv
2111.00396), eq. 3.

Shapes: D channels, M conjugate pairs of the state, N = 2 M state of the real system.
"""

from __future__ import annotations

import torch
from torch import Tensor

DISCRETISATIONS = ("zoh", "bilinear", "euler")

ALPHA = {"bilinear": 0.5, "euler": 0.0}
"""Weight of the new end in the generalised bilinear transform."""


def discretise_diagonal(A_DM: Tensor, B_DM: Tensor, dt_D: Tensor, method: str) -> tuple[Tensor, Tensor]:
    """The logarithm of A_bar, and B_bar, of a diagonal system; both (D, M) complex."""
    if method == "zoh":
        log_A_DM = dt_D[:, None] * A_DM
        return log_A_DM, B_DM * (log_A_DM.exp() - 1) / A_DM
    z_DM, alpha = dt_D[:, None] * A_DM, ALPHA[method]
    log_A_DM = (1 + (1 - alpha) * z_DM).log() - (1 - alpha * z_DM).log()
    return log_A_DM, dt_D[:, None] * B_DM / (1 - alpha * z_DM)


def discretise_dense(A_DNN: Tensor, B_DN: Tensor, dt_D: Tensor, method: str) -> tuple[Tensor, Tensor]:
    """A_bar (D, N, N) and B_bar (D, N) of a system with any matrix; ``bilinear`` or ``euler``."""
    alpha, dt_D11 = ALPHA[method], dt_D[:, None, None]
    one_NN = torch.eye(A_DNN.shape[-1], dtype=A_DNN.dtype, device=A_DNN.device)
    right = torch.cat([one_NN + (1 - alpha) * dt_D11 * A_DNN, dt_D11 * B_DN[..., None]], dim=-1)
    solved = torch.linalg.solve(one_NN - alpha * dt_D11 * A_DNN, right)
    return solved[..., :-1], solved[..., -1]


def real_matrix(A_DM: Tensor, *P_DM: Tensor) -> Tensor:
    """The real (D, N, N) matrix of diag(A) less each P P^* on states stored as [real, imaginary parts].

    A and P represent themselves and their conjugates, so that P^* x = 2 Re(sum conj(P) x).
    """
    re, im = torch.diag_embed(A_DM.real), torch.diag_embed(A_DM.imag)
    A_DNN = torch.cat([torch.cat([re, -im], dim=-1), torch.cat([im, re], dim=-1)], dim=-2)
    for P_DN in map(real_vector, P_DM):
        A_DNN = A_DNN - 2 * P_DN[..., :, None] * P_DN[..., None, :]
    return A_DNN


def real_vector(B_DM: Tensor) -> Tensor:
    """The real input vector (D, N) of a complex one."""
    return torch.cat([B_DM.real, B_DM.imag], dim=-1)


def real_readout(C_DM: Tensor) -> Tensor:
    """The real readout (D, N) with the meaning of 2 Re(sum C x)."""
    return 2 * torch.cat([C_DM.real, -C_DM.imag], dim=-1)


def largest_stable_euler_step(eigenvalues_M: Tensor) -> float:
    """The step above which Euler's recurrence grows: |1 + dt a| <= 1 for every eigenvalue a."""
    return (2 * -eigenvalues_M.real / eigenvalues_M.abs().square()).min().item()
