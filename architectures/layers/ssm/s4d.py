"""The S4 layer: one linear system for each channel, in three equivalent forms.

Gu et al. 2022 (arXiv 2111.00396). Continuous, it is the differential equation ``x' = A x + B u``,
``y = C x + D u``. Discretised, it is a recurrence, by which it decodes. Over a full sequence it is
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

from archbench.architectures.backbone import Flops, linear_flops
from archbench.architectures.layers.block import Mixer
from archbench.architectures.layers.canon import filtered
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.ssm.convolution_kernel import (
    apart,
    convolve,
    fft_flops,
    like_lengths,
    vandermonde,
    vandermonde_reference,
)
from archbench.architectures.layers.ssm.discretization import (
    discretise_diagonal,
    real_matrix,
    real_readout,
    real_vector,
)
from archbench.architectures.layers.ssm.hippo import EIGENVALUES, NPLR
from archbench.architectures.layers.ssm.s4_config import S4LayerConfig

Advance = Callable[[Tensor, Tensor], Tensor]
"""From the state (B, D, M) and an input (B, D) to the next state."""

LEAP = 64
"""Tokens of a long prompt that are read at once, a power of two."""

LONG = 256
"""Tokens from which on a prompt is long: below, preparing a leap costs more than it saves."""

DYNAMICS_RATE = 1e-3
"""Largest learning rate of A, B and dt, which are not decayed either; as in the authors' code."""


DT: dict[str, Callable[[Tensor], Tensor]] = {"exp": torch.exp, "softplus": F.softplus}
"""From the parameter to the time step, by ``dt_transform``."""


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
        pairs, systems = config.d_state // 2, config.num_systems or d_model
        if d_model % systems:
            raise ValueError(f"num_systems={systems} must divide d_model={d_model}")
        self.config, self.discretisation = config, config.discretisation
        self.dt_scale = config.dt_scale
        self.bidirectional = bidirectional
        self.log_dt_D = nn.Parameter(torch.empty(d_model))
        # Of num_systems, where channels share them: as many rows instead of D.
        self.log_A_real_DM = nn.Parameter(torch.empty(systems, pairs))
        self.A_imag_DM = nn.Parameter(torch.empty(systems, pairs))
        self.C_DM2 = nn.Parameter(torch.empty(d_model, pairs, 2))
        self.D_D = nn.Parameter(torch.ones(d_model))
        self.out = nn.Linear(d_model, 2 * d_model)
        if bidirectional:
            self.C_backward_DM2 = nn.Parameter(torch.empty(d_model, pairs, 2))
        self.spare(self.log_A_real_DM, self.A_imag_DM)
        self.spare(self.log_dt_D, cap=config.dt_rate_cap)

    def scan_path(self) -> str:
        return self.path

    @staticmethod
    def spare(*dynamics: nn.Parameter, cap: float | None = DYNAMICS_RATE) -> None:
        """Mark parameters for the optimizer: no weight decay, and a learning rate that may be capped."""
        for parameter in dynamics:
            parameter.no_weight_decay = True  # type: ignore[attr-defined]
            if cap is not None:
                parameter.learning_rate_cap = cap  # type: ignore[attr-defined]

    def of_channels(self, x_SM: Tensor) -> Tensor:
        """Values of each channel (D, M) from those of each system."""
        shared = len(self.D_D) // len(x_SM)
        return x_SM if shared == 1 else x_SM.repeat(shared, 1)

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

    def eigenvalues(self, size: int) -> Tensor:
        """The diagonal part (M) of the state matrix at the start."""
        return EIGENVALUES[self.config.initialisation](size)

    def hippo_input(self) -> Tensor:
        """The input B (M) of HiPPO in the basis that makes A diagonal."""
        _, _, B_M = NPLR[self.config.initialisation](self.config.d_state)
        limit = self.config.B_clip
        return B_M if limit is None else torch.complex(B_M.real, B_M.imag.clamp(-limit, limit))

    def dt(self) -> Tensor:
        """Time step (D) of each channel."""
        return DT[self.config.dt_transform](self.log_dt_D) * self.dt_scale

    def A(self) -> Tensor:
        """Eigenvalues (D, M) of the diagonal part, in the left half of the plane."""
        return self.of_channels(torch.complex(-self.log_A_real_DM.exp(), self.A_imag_DM))

    def C(self, *, backward: bool = False) -> Tensor:
        """The readout (D, M) of one half of each conjugate pair."""
        return torch.view_as_complex(self.C_backward_DM2 if backward else self.C_DM2)

    @property
    def canon_widths(self) -> dict[str, int]:
        return {"input": len(self.D_D)}

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        x_BTD = filtered(self, "input", x_BTD, context)
        if context.valid_BT is not None:
            x_BTD = x_BTD * context.valid_BT[..., None]
        with torch.autocast(x_BTD.device.type, enabled=False):
            compute_dtype = torch.promote_types(x_BTD.dtype, torch.float32)
            wide_BTD = x_BTD.to(compute_dtype)
            y_BDT = self._convolved(wide_BTD.transpose(1, 2), context)
            # Transposed once, before all other reads, because later operations read full rows.
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
        shape = (batch_size, *self.C_DM2.shape[:2])
        return {"ssm": torch.zeros(shape, dtype=dtype, device=self.C_DM2.device)}

    def step(self, x_BTD: Tensor, state: dict[str, Any], context: Context) -> Tensor:
        x_BTD = filtered(self, "input", x_BTD, context)
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

        The kernel is computed once for a batch, not for each sequence, and is left out.
        """
        mixer = self.D_D.numel() * (fft_flops(length) + 2 * length)
        return Flops(linear=linear_flops(self, length), mixer=mixer)

    def state_bytes(self, length: int, bytes_per_element: int) -> int:
        return self.C_DM2.numel() * max(bytes_per_element, 4)  # complex64 at least

    @torch.no_grad()
    def initialise(self, num_branches: int) -> None:
        """A by the config, time steps log-uniform, C standard complex normal."""
        eigenvalues_M = self.eigenvalues(self.config.d_state)
        # The normal parts of LegT and FouT have no real part, and its logarithm is trained.
        decay_M = (-eigenvalues_M.real).clamp_min(1e-4)
        self.log_A_real_DM.copy_(decay_M.log().expand_as(self.log_A_real_DM))
        self.A_imag_DM.copy_(eigenvalues_M.imag.expand_as(self.A_imag_DM))
        self.log_dt_D.uniform_(math.log(self.config.dt_min), math.log(self.config.dt_max))
        if self.config.dt_transform == "softplus":
            step_D = self.log_dt_D.exp()
            self.log_dt_D.copy_(step_D + (-(-step_D).expm1()).log())  # the inverse of softplus
        if self.config.D == "normal":
            self.D_D.normal_()
        self.C_DM2.normal_(0.0, 0.5**0.5)
        if self.bidirectional:
            self.C_backward_DM2.normal_(0.0, 0.5**0.5)
        self.out.weight.mul_(num_branches**-0.5)


class S4D(S4Layer):
    """S4 with a diagonal state matrix (arXiv 2206.11893)."""

    path = "FFT, two-level Vandermonde kernel"
    B_DM2: nn.Parameter | None

    def __init__(self, d_model: int, config: S4LayerConfig, *, bidirectional: bool = False) -> None:
        super().__init__(d_model, config, bidirectional=bidirectional)
        trained = config.B == "trained"
        self.B_DM2 = nn.Parameter(torch.empty(*self.A_imag_DM.shape, 2)) if trained else None
        if self.B_DM2 is not None:
            self.spare(self.B_DM2)

    def B(self) -> Tensor:
        """The input (D, M)."""
        if self.B_DM2 is None:
            return torch.ones_like(self.A())
        return self.of_channels(torch.view_as_complex(self.B_DM2))

    def continuous(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return real_matrix(self.A()), real_vector(self.B()), real_readout(self.C()), self.D_D

    def discretised(self, *, backward: bool = False) -> tuple[Tensor, Tensor]:
        """Log of the discrete A, and 2 C B with B discretised; (D, M) complex."""
        # The factor 2 accounts for the conjugate half that is not stored.
        CB_DM = 2 * self.C(backward=backward)
        if self.B_DM2 is not None:
            CB_DM = CB_DM * self.B()
        return discretise_diagonal(self.A(), CB_DM, self.dt(), self.discretisation)

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
        channels, pairs, _ = self.C_DM2.shape
        return Flops(linear=linear_flops(self, 1), mixer=channels * (15 * pairs + 2))

    @torch.no_grad()
    def initialise(self, num_branches: int) -> None:
        """HiPPO's B for HiPPO's A where it is trained, else ones; the rest as in every S4 layer."""
        super().initialise(num_branches)
        if self.B_DM2 is None:
            return
        pairs = self.config.d_state // 2
        hippo = self.config.initialisation in NPLR
        B_M = self.hippo_input() if hippo else torch.ones(pairs, dtype=torch.complex128)
        self.B_DM2.copy_(torch.view_as_real(B_M).expand_as(self.B_DM2))
