"""S4 with a state matrix that is diagonal minus a matrix of rank one.

Gu et al. 2022 (arXiv 2111.00396): HiPPO-LegS is of this form. Written A = diag(a) - P P^* with a
in the left half of the plane, no training can make it unstable (SaShiMi, Goel et al. 2022, arXiv
2202.09729).

Shapes: B batch, T length, D channels, M conjugate pairs of the state, N = 2 M state of the real system.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from architectures.backbone import Flops, linear_flops
from architectures.layers.ssm.convolution_kernel import cauchy, powers_reference
from architectures.layers.ssm.discretization import (
    ALPHA,
    discretise_dense,
    real_matrix,
    real_readout,
    real_vector,
)
from architectures.layers.ssm.hippo import legs_nplr
from architectures.layers.ssm.s4_config import S4LayerConfig
from architectures.layers.ssm.s4d import S4D, Advance, Leap, S4Layer


class S4DPLR(S4Layer):
    """S4 as first published: its kernel is made of Cauchy sums, and a step costs O(N) as with a diagonal."""

    path = "FFT, Cauchy kernel"

    def __init__(self, d_model: int, config: S4LayerConfig, *, bidirectional: bool = False) -> None:
        super().__init__(d_model, config, bidirectional=bidirectional)
        self.P_DM2 = nn.Parameter(torch.empty_like(self.C_DM2))
        self.B_DM2 = nn.Parameter(torch.empty_like(self.C_DM2))
        self.spare(self.P_DM2, self.B_DM2)

    def P(self) -> Tensor:
        """The low-rank part (D, M)."""
        return torch.view_as_complex(self.P_DM2)

    def B(self) -> Tensor:
        """The input (D, M)."""
        return torch.view_as_complex(self.B_DM2)

    def continuous(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return real_matrix(self.A(), self.P()), real_vector(self.B()), real_readout(self.C()), self.D_D

    def discretised(self) -> tuple[Tensor, Tensor]:
        """The real discrete A (D, N, N) and B (D, N), in float64."""
        A_DNN, B_DN, _, _ = self.continuous()
        return discretise_dense(A_DNN.double(), B_DN.double(), self.dt().double(), self.discretisation)

    def recurrence(self) -> tuple[Advance, Tensor]:
        """The discrete A as diagonal and rank-one matrices, the inverse by Woodbury's identity."""
        alpha, dt_D1, A_DM, P_DM = ALPHA[self.discretisation], self.dt()[:, None], self.A(), self.P()
        inverse_DM = 1 / (1 - alpha * dt_D1 * A_DM)
        decay_DM = inverse_DM * (1 + (1 - alpha) * dt_D1 * A_DM)
        old_DM = inverse_DM * (1 - alpha) * dt_D1 * P_DM
        gain_D1 = alpha * dt_D1 / (1 + alpha * dt_D1 * _inner(P_DM, inverse_DM * P_DM))
        new_DM = inverse_DM * gain_D1 * P_DM
        B_DM = inverse_DM * dt_D1 * self.B()

        def advance(h_BDM: Tensor, x_BD: Tensor) -> Tensor:
            v_BDM = h_BDM * decay_DM - old_DM * _inner(P_DM, h_BDM) + B_DM * x_BD[..., None]
            return v_BDM - new_DM * _inner(P_DM, v_BDM)

        return advance, 2 * self.C()

    def leap(self, length: int) -> Leap:
        A_DNN, B_DN = self.discretised()
        C_DN = real_readout(self.C()).double()
        writes_DTN, reads_DTN, power_DNN = B_DN[:, None], C_DN[:, None], A_DNN
        while writes_DTN.shape[1] < length:  # A^t B and C A^t, each time twice as many
            writes_DTN = torch.cat([writes_DTN, writes_DTN @ power_DNN.mT], dim=1)
            reads_DTN = torch.cat([reads_DTN, reads_DTN @ power_DNN], dim=1)
            power_DNN = power_DNN @ power_DNN
        real, state = self.log_dt_D.dtype, self.A().dtype
        kernel_DT, power_DNN = _times(reads_DTN, B_DN).to(real), power_DNN.to(real)
        return Leap(
            kernel_DT=kernel_DT,
            read_DMT=_complex(reads_DTN @ A_DNN).conj().mT.to(state),
            write_DMT=_complex(writes_DTN.flip(1)).mT.to(state),
            keep=lambda h_BDM: _complex(_times(power_DNN, real_vector(h_BDM))),
        )

    def kernel_reference(self, length: int, *, backward: bool = False) -> Tensor:
        C_DN = real_readout(self.C(backward=backward)).double()
        return powers_reference(*self.discretised(), C_DN, length).to(self.log_dt_D.dtype)

    def kernel(self, length: int, *, backward: bool = False) -> Tensor:
        # In float64: in float32 the gradient of the time step keeps only three or four digits.
        doublings = max(1, math.ceil(math.log2(length)))
        power_DNN, _ = self.discretised()
        for _ in range(doublings):
            power_DNN = power_DNN @ power_DNN
        C_DN = real_readout(self.C(backward=backward)).double()
        cut_DM = _complex(C_DN - _times(power_DNN.mT, C_DN)).conj() / 2
        A_DM, P_DM, B_DM = (x.to(torch.complex128) for x in (self.A(), self.P(), self.B()))
        nodes = 2**doublings
        kernel_DT = cauchy(A_DM, P_DM, B_DM, cut_DM, self.dt().double(), nodes, self.discretisation)
        return kernel_DT[:, :length].to(self.log_dt_D.dtype)

    def step_flops(self, length: int) -> Flops:
        """The recurrence: for each pair seven products (6), three additions (2) and a term of three sums."""
        channels, pairs = self.A_imag_DM.shape
        return Flops(linear=linear_flops(self, 1), mixer=channels * (51 * pairs + 4))

    @torch.no_grad()
    def initialise(self, num_branches: int) -> None:
        """HiPPO-LegS for A and B; the rest as in every S4 layer."""
        super().initialise(num_branches)
        _, P_M, B_M = legs_nplr(2 * self.A_imag_DM.shape[1])
        self.P_DM2.copy_(torch.view_as_real(P_M).expand_as(self.P_DM2))
        self.B_DM2.copy_(torch.view_as_real(B_M).expand_as(self.B_DM2))


def _inner(P_DM: Tensor, x_DM: Tensor) -> Tensor:
    """P^* x over both halves of each conjugate pair, (..., D, 1) real."""
    return 2 * (P_DM.conj() * x_DM).sum(-1, keepdim=True).real


def _times(A_DNN: Tensor, x_DN: Tensor) -> Tensor:
    """A x for vectors (..., D, N)."""
    return (A_DNN @ x_DN[..., None])[..., 0]


def _complex(x_N: Tensor) -> Tensor:
    """Invert ``real_vector``. Of a real readout, the conjugate R of this reads the same as Re(sum R x)."""
    return torch.complex(*x_N.chunk(2, dim=-1))


LAYERS: dict[str, type[S4D] | type[S4DPLR]] = {"diagonal": S4D, "dplr": S4DPLR}
"""The layer of each parametrisation."""
