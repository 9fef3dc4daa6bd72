"""S4 with a state matrix that is diagonal minus a matrix of low rank.

Gu et al. 2022 (arXiv 2111.00396): HiPPO-LegS is of this form with rank one, LegT and FouT with rank two.
Written A = diag(a) - P P^* with a in the left half of the plane, no training can make it unstable (SaShiMi,
Goel et al. 2022, arXiv 2202.09729).

Shapes: B batch, T length, D channels, M conjugate pairs of the state, N = 2 M state of the real system,
R rank.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from archbench.architectures.backbone import Flops, linear_flops
from archbench.architectures.layers.ssm.convolution_kernel import cauchy, powers_reference
from archbench.architectures.layers.ssm.discretization import (
    ALPHA,
    discretise_dense,
    real_matrix,
    real_readout,
    real_vector,
)
from archbench.architectures.layers.ssm.hippo import NPLR
from archbench.architectures.layers.ssm.s4_config import S4LayerConfig
from archbench.architectures.layers.ssm.s4d import S4D, Advance, Leap, S4Layer


class S4DPLR(S4Layer):
    """S4 as first published: its kernel is a sum of Cauchy terms, and a step costs O(N) as in S4D."""

    path = "FFT, Cauchy kernel"

    def __init__(self, d_model: int, config: S4LayerConfig, *, bidirectional: bool = False) -> None:
        super().__init__(d_model, config, bidirectional=bidirectional)
        system = (*self.A_imag_DM.shape, 2)
        self.rank = len(NPLR[config.initialisation](config.d_state)[1])
        self.P_DM2 = nn.Parameter(torch.empty(system if self.rank == 1 else (self.rank, *system)))
        self.B_DM2 = nn.Parameter(torch.empty(system))
        self.spare(self.P_DM2, self.B_DM2)

    def P(self) -> Tensor:
        """The low-rank part (R, D, M)."""
        P_RSM = torch.view_as_complex(self.P_DM2).view(self.rank, *self.A_imag_DM.shape)
        return torch.stack([self.of_channels(P_SM) for P_SM in P_RSM])

    def B(self) -> Tensor:
        """The input (D, M)."""
        return self.of_channels(torch.view_as_complex(self.B_DM2))

    def C(self, *, backward: bool = False) -> Tensor:
        """The readout (D, M); what is trained is C (1 - A^L) where there is a ``C_length`` L."""
        C_DM = super().C(backward=backward)
        if self.config.C_length is None:
            return C_DM
        C_DN = torch.linalg.solve(self._rest().mT, real_readout(C_DM).double()[..., None])[..., 0]
        return (_complex(C_DN).conj() / 2).to(C_DM.dtype)

    def _rest(self) -> Tensor:
        """1 - A^L (D, N, N) of the discrete A, for L = ``C_length``, at the time steps that are trained.

        Another sampling rate changes A^L, and must not change C.
        """
        A_DNN, _ = self._discretised(self.dt() / self.dt_scale)
        assert self.config.C_length is not None
        one_NN = torch.eye(A_DNN.shape[-1], dtype=A_DNN.dtype, device=A_DNN.device)
        return one_NN - torch.linalg.matrix_power(A_DNN, self.config.C_length)

    def continuous(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return real_matrix(self.A(), *self.P()), real_vector(self.B()), real_readout(self.C()), self.D_D

    def discretised(self) -> tuple[Tensor, Tensor]:
        """The real discrete A (D, N, N) and B (D, N), in float64."""
        return self._discretised(self.dt())

    def _discretised(self, dt_D: Tensor) -> tuple[Tensor, Tensor]:
        A_DNN, B_DN = real_matrix(self.A(), *self.P()).double(), real_vector(self.B()).double()
        return discretise_dense(A_DNN, B_DN, dt_D.double(), self.discretisation)

    def recurrence(self) -> tuple[Advance, Tensor]:
        """The discrete A as diagonal and low-rank matrices, the inverse by Woodbury's identity."""
        alpha, dt_D1, A_DM, P_RDM = ALPHA[self.discretisation], self.dt()[:, None], self.A(), self.P()
        inverse_DM = 1 / (1 - alpha * dt_D1 * A_DM)
        decay_DM = inverse_DM * (1 + (1 - alpha) * dt_D1 * A_DM)
        old_RDM = inverse_DM * (1 - alpha) * dt_D1 * P_RDM
        gain_DRR = self._gain(P_RDM, inverse_DM, alpha * dt_D1)
        new_RDM = torch.einsum("drs,rdm->sdm", gain_DRR.to(P_RDM.dtype), inverse_DM * P_RDM)
        B_DM = inverse_DM * dt_D1 * self.B()

        def advance(h_BDM: Tensor, x_BD: Tensor) -> Tensor:
            v_BDM = h_BDM * decay_DM + B_DM * x_BD[..., None]
            for old_DM, P_DM in zip(old_RDM, P_RDM, strict=True):
                v_BDM = v_BDM - old_DM * _inner(P_DM, h_BDM)
            inner = [_inner(P_DM, v_BDM) for P_DM in P_RDM]
            for new_DM, inner_BD1 in zip(new_RDM, inner, strict=True):
                v_BDM = v_BDM - new_DM * inner_BD1
            return v_BDM

        return advance, 2 * self.C()

    def _gain(self, P_RDM: Tensor, inverse_DM: Tensor, step_D1: Tensor) -> Tensor:
        """alpha dt (1 + alpha dt P^* inverse P)^-1, real (D, R, R)."""
        rows = [torch.cat([_inner(P_DM, inverse_DM * Q_DM) for Q_DM in P_RDM], dim=1) for P_DM in P_RDM]
        inner_DRR, step_D11 = torch.stack(rows, dim=1), step_D1[..., None]
        one_RR = torch.eye(self.rank, dtype=inner_DRR.dtype, device=inner_DRR.device)
        return torch.linalg.solve(one_RR + step_D11 * inner_DRR, step_D11 * one_RR)

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
        A_DM, P_RDM, B_DM = (x.to(torch.complex128) for x in (self.A(), self.P(), self.B()))
        nodes = 2**doublings
        kernel_DT = cauchy(A_DM, P_RDM, B_DM, cut_DM, self.dt().double(), nodes, self.discretisation)
        return kernel_DT[:, :length].to(self.log_dt_D.dtype)

    def step_flops(self, length: int) -> Flops:
        """The recurrence: for each pair three products (6), an addition (2) and a term of a sum, and for each
        rank four products, two additions and terms of two sums."""
        channels, pairs, _ = self.C_DM2.shape
        channel_flops = pairs * (21 + 30 * self.rank) + 2 + 2 * self.rank
        return Flops(linear=linear_flops(self, 1), mixer=channels * channel_flops)

    def eigenvalues(self, size: int) -> Tensor:
        return NPLR[self.config.initialisation](size)[0]

    @torch.no_grad()
    def initialise(self, num_branches: int) -> None:
        """HiPPO for A and B; the rest as in every S4 layer."""
        super().initialise(num_branches)
        P_RM = NPLR[self.config.initialisation](self.config.d_state)[1]
        P_RM2 = torch.view_as_real(P_RM if self.rank > 1 else P_RM[0])
        self.P_DM2.copy_(P_RM2.unsqueeze(-3).expand_as(self.P_DM2))
        self.B_DM2.copy_(torch.view_as_real(self.hippo_input()).expand_as(self.B_DM2))
        if self.config.C_length is not None:
            readouts = [self.C_DM2, self.C_backward_DM2] if self.bidirectional else [self.C_DM2]
            for C_DM2 in readouts:
                C_DN = real_readout(torch.view_as_complex(C_DM2)).double()
                C_DM2.copy_(torch.view_as_real(_complex(_times(self._rest().mT, C_DN)).conj() / 2))


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
