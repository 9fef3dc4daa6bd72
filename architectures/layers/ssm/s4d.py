"""The S4 layer: one linear system for each channel, seen in three ways.

Gu et al. 2022 (arXiv 2111.00396). Continuous, it is the differential equation ``x' = A x + B u``,
``y = C x + D u``. Discretised, it is a recurrence, by which it decodes. Over a whole sequence it is
a convolution with its impulse response, by which it trains.

Shapes: B batch, T length, D d_model channels, M = d_state / 2 conjugate pairs of the state,
N = d_state the same as a real system.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from architectures.backbone import Flops, linear_flops
from architectures.layers.block import Mixer
from architectures.layers.context import Context
from architectures.layers.ssm.convolution_kernel import (
    apart,
    convolve,
    fft_flops,
    like_lengths,
    vandermonde,
    vandermonde_reference,
)
from architectures.layers.ssm.discretization import (
    discretise_diagonal,
    real_matrix,
    real_readout,
    real_vector,
)
from architectures.layers.ssm.hippo import EIGENVALUES
from architectures.layers.ssm.s4_config import S4LayerConfig

Advance = Callable[[Tensor, Tensor], Tensor]
"""From the state (B, D, M) and an input (B, D) to the next state."""

LEAP = 64
"""Tokens of a long prompt that are read at once, a power of two."""

LONG = 256
"""Tokens from which on a prompt is long: below, preparing a leap costs more than it saves."""

DYNAMICS_RATE = 1e-3
"""Largest learning rate of A, B and dt, which are not decayed either; as in the authors' code."""


@dataclass(frozen=True, kw_only=True)
class Leap:
    """T steps of the recurrence at once: the convolution, with an initial state and a final one."""

    kernel_DT: Tensor
    """Contribution of each input to the outputs."""
    read_DMT: Tensor
    """Contribution of the state before to the outputs: Re(sum of read x)."""
    write_DMT: Tensor
    """Contribution of each input to the state after."""
    keep: Callable[[Tensor], Tensor]
    """Maps the state (B, D, M) to that after the leap, without inputs."""

    def __call__(self, x_BTD: Tensor, h_BDM: Tensor) -> Tensor:
        """The outputs (B, T, D), without the skip; ``h_BDM`` advances in place."""
        x_BDT = x_BTD.transpose(1, 2)
        y_BDT = convolve(x_BDT, self.kernel_DT) + torch.einsum("bdm,dmt->bdt", h_BDM, self.read_DMT).real
        written_BDM = torch.einsum("bdt,dmt->bdm", x_BDT.to(self.write_DMT.dtype), self.write_DMT)
        h_BDM.copy_(self.keep(h_BDM) + written_BDM)
        return y_BDT.transpose(1, 2)


class S4Layer(Mixer):
    """A linear system of each channel, GELU, then a gated linear unit that mixes channels.

    A bidirectional layer adds a second readout of the same system run from the end to the
    beginning, over what comes after each position.
    """

    path: ClassVar[str]
    """Path of the convolution in the record of a run."""

    def __init__(self, d_model: int, config: S4LayerConfig, *, bidirectional: bool = False) -> None:
        super().__init__()
        pairs = config.d_state // 2
        self.initialisation, self.discretisation = config.initialisation, config.discretisation
        self.dt_range = (config.dt_min, config.dt_max)
        self.dt_scale = config.dt_scale
        self.bidirectional = bidirectional
        self.log_dt_D = nn.Parameter(torch.empty(d_model))
        self.log_A_real_DM = nn.Parameter(torch.empty(d_model, pairs))
        self.A_imag_DM = nn.Parameter(torch.empty(d_model, pairs))
        self.C_DM2 = nn.Parameter(torch.empty(d_model, pairs, 2))
        self.D_D = nn.Parameter(torch.ones(d_model))
        self.out = nn.Linear(d_model, 2 * d_model)
        if bidirectional:
            self.C_backward_DM2 = nn.Parameter(torch.empty(d_model, pairs, 2))
        self.spare(self.log_dt_D, self.log_A_real_DM, self.A_imag_DM)

    @staticmethod
    def spare(*dynamics: nn.Parameter) -> None:
        """Mark parameters for the optimizer: no weight decay, and a learning rate that is capped."""
        for parameter in dynamics:
            parameter.no_weight_decay = True  # type: ignore[attr-defined]
            parameter.learning_rate_cap = DYNAMICS_RATE  # type: ignore[attr-defined]

    @abstractmethod
    def continuous(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The differential equation: real A (D, N, N), B (D, N), C (D, N) and the skip D (D)."""

    @abstractmethod
    def recurrence(self) -> tuple[Advance, Tensor]:
        """The discrete system: how the state advances, and R (D, M) of the readout Re(sum R x)."""

    @abstractmethod
    def leap(self, length: int) -> Leap:
        """``length`` steps of the recurrence at once; a power of two."""

    @abstractmethod
    def kernel(self, length: int, *, backward: bool = False) -> Tensor:
        """The impulse response (D, T); ``backward`` for that of the readout from the end."""

    @abstractmethod
    def kernel_reference(self, length: int, *, backward: bool = False) -> Tensor:
        """Return the kernel, with each power of the state matrix computed explicitly."""

    def dt(self) -> Tensor:
        """Time step (D) of each channel."""
        return self.log_dt_D.exp() * self.dt_scale

    def A(self) -> Tensor:
        """Eigenvalues (D, M) of the diagonal part, in the left half of the plane."""
        return torch.complex(-self.log_A_real_DM.exp(), self.A_imag_DM)

    def C(self, *, backward: bool = False) -> Tensor:
        """The readout (D, M) of one half of each conjugate pair."""
        return torch.view_as_complex(self.C_backward_DM2 if backward else self.C_DM2)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        if context.valid_BT is not None:
            x_BTD = x_BTD * context.valid_BT[..., None]
        with torch.autocast(x_BTD.device.type, enabled=False):
            wide = torch.promote_types(x_BTD.dtype, torch.float32)
            wide_BTD = x_BTD.to(wide)
            y_BDT = self._convolved(wide_BTD.transpose(1, 2), context)
            # Turned round once, before anything else reads it: what follows goes over whole rows.
            y_BTD = y_BDT.transpose(1, 2).contiguous() + self.D_D * wide_BTD
        return self._mix(y_BTD.to(x_BTD.dtype))

    def _convolved(self, x_BDT: Tensor, context: Context) -> Tensor:
        if context.documents_BT is None:
            return convolve(x_BDT, *self._kernels(x_BDT.shape[-1]))
        groups = context.once("documents of like length", lambda: like_lengths(context.positions_BT))
        kernels = self._kernels(max(group.length for group in groups))
        return apart(
            x_BDT, groups, lambda x_RDS: convolve(x_RDS, *(k[:, : x_RDS.shape[-1]] for k in kernels))
        )

    def _kernels(self, length: int) -> list[Tensor]:
        directions = (False, True) if self.bidirectional else (False,)
        return [self.kernel(length, backward=backward) for backward in directions]

    def _mix(self, y_BTD: Tensor) -> Tensor:
        return F.glu(self.out(F.gelu(y_BTD)), dim=-1)

    def start(self, batch_size: int, max_length: int) -> dict[str, Any]:
        dtype = torch.complex128 if self.C_DM2.dtype == torch.float64 else torch.complex64
        shape = (batch_size, *self.A_imag_DM.shape)
        return {"ssm": torch.zeros(shape, dtype=dtype, device=self.C_DM2.device)}

    def step(self, x_BTD: Tensor, state: dict[str, Any], context: Context) -> Tensor:
        with torch.autocast(x_BTD.device.type, enabled=False):
            y_BTD = self._read(x_BTD.to(state["ssm"].real.dtype), state["ssm"], context.valid_BT)
        return self._mix(y_BTD.to(x_BTD.dtype))

    def _read(self, x_BTD: Tensor, h_BDM: Tensor, valid_BT: Tensor | None) -> Tensor:
        """The system's outputs: by leaps while all rows have tokens, one by one where some end."""
        if valid_BT is None:
            valid_BT = torch.ones_like(x_BTD[..., 0], dtype=torch.bool)
        leap = self.leap(LEAP) if x_BTD.shape[1] >= LONG else None
        advance, readout_DM = self.recurrence()
        outputs = []
        for piece_BSD, valid_BS in zip(x_BTD.split(LEAP, dim=1), valid_BT.split(LEAP, dim=1), strict=True):
            if leap is not None and piece_BSD.shape[1] == LEAP and valid_BS.all():
                outputs.append(leap(piece_BSD, h_BDM) + self.D_D * piece_BSD)
                continue
            for x_BD, valid_B in zip(piece_BSD.unbind(1), valid_BS.unbind(1), strict=True):
                h_BDM.copy_(torch.where(valid_B[:, None, None], advance(h_BDM, x_BD), h_BDM))
                y_BD = (h_BDM * readout_DM).sum(-1).real + self.D_D * x_BD
                outputs.append(y_BD[:, None])
        return torch.cat(outputs, dim=1)

    def flops(self, length: int) -> Flops:
        """The convolution, and the skip.

        The kernel is made once for a whole batch, not for each sequence, and is left out.
        """
        mixer = self.D_D.numel() * (fft_flops(length) + 2 * length)
        return Flops(linear=linear_flops(self, length), mixer=mixer)

    def state_bytes(self, length: int, bytes_per_element: int) -> int:
        return self.A_imag_DM.numel() * 2 * max(bytes_per_element, 4)  # complex64 at least

    @torch.no_grad()
    def initialise(self, num_branches: int) -> None:
        """A by the config, time steps log-uniform, C standard complex normal."""
        eigenvalues_M = EIGENVALUES[self.initialisation](2 * self.A_imag_DM.shape[1])
        self.log_A_real_DM.copy_((-eigenvalues_M.real).log().expand_as(self.log_A_real_DM))
        self.A_imag_DM.copy_(eigenvalues_M.imag.expand_as(self.A_imag_DM))
        self.log_dt_D.uniform_(*(math.log(value) for value in self.dt_range))
        self.C_DM2.normal_(0.0, 0.5**0.5)
        if self.bidirectional:
            self.C_backward_DM2.normal_(0.0, 0.5**0.5)
        self.out.weight.mul_(num_branches**-0.5)


class S4D(S4Layer):
    """S4 with a diagonal state matrix (arXiv 2206.11893)."""

    path = "FFT, two-level Vandermonde kernel"

    def continuous(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return real_matrix(self.A()), real_vector(torch.ones_like(self.A())), real_readout(self.C()), self.D_D

    def discretised(self, *, backward: bool = False) -> tuple[Tensor, Tensor]:
        """Log of the discrete A, and 2 C B with B discretised; (D, M) complex."""
        # B is fixed at 1 (its freedom is C's); the 2 stands for the conjugate half that is not kept.
        return discretise_diagonal(self.A(), 2 * self.C(backward=backward), self.dt(), self.discretisation)

    def recurrence(self) -> tuple[Advance, Tensor]:
        log_A_DM, CB_DM = self.discretised()
        A_DM = log_A_DM.exp()
        return lambda h_BDM, x_BD: h_BDM * A_DM + x_BD[..., None], CB_DM

    def leap(self, length: int) -> Leap:
        log_A_DM, CB_DM = self.discretised()
        steps_T = torch.arange(length, device=log_A_DM.device)
        return Leap(
            kernel_DT=self.kernel(length),
            read_DMT=CB_DM[..., None] * (log_A_DM[..., None] * (steps_T + 1)).exp(),
            write_DMT=(log_A_DM[..., None] * steps_T.flip(0)).exp(),
            keep=lambda h_BDM: h_BDM * (log_A_DM * length).exp(),
        )

    def kernel_reference(self, length: int, *, backward: bool = False) -> Tensor:
        return vandermonde_reference(*self.discretised(backward=backward), length)

    def kernel(self, length: int, *, backward: bool = False) -> Tensor:
        return vandermonde(*self.discretised(backward=backward), length)

    def step_flops(self, length: int) -> Flops:
        """The recurrence: for each pair a decay and a readout (6 each), an input (2) and a sum."""
        channels, pairs = self.A_imag_DM.shape
        return Flops(linear=linear_flops(self, 1), mixer=channels * (15 * pairs + 2))
