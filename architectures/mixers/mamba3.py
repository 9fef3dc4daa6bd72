"""The Mamba-3 mixer (Lahoti et al. 2026, arXiv 2603.15569): a trapezoidal rule, and a state that rotates.

A complex state is a real one whose pairs of numbers rotate. Rotating B and C by the sum of all angles up to
their step does the same, as rotary positions do in attention, with angles that depend on the tokens.

Shapes: B batch, T length, D d_model, H heads, R inputs and outputs of a head, P head_dim, I = H P channels,
G groups of heads that share B and C, N state size, S angles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archbench.architectures.backbone import Flops, linear_flops
from archbench.architectures.fast_paths import Scan, check_installed, check_path, scan_path
from archbench.architectures.layers.canon import filtered
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.ssm.heads_config import HeadsConfig
from archbench.architectures.layers.ssm.recurrent import (
    RecurrentMixer,
    State,
    document_starts,
    draw_time_steps,
)
from archbench.architectures.layers.ssm.trapezoid import TrapezoidState, trapezoid, trapezoid_flops

SOURCES = ("cpp",)
"""Paths with kernels of the recurrence with one input."""


@dataclass(frozen=True, kw_only=True)
class Mamba3Config(HeadsConfig):
    """The Mamba-3 mixer; the defaults are the authors', with a smaller state and fewer heads."""

    d_state: int | None = None
    """State of each channel (N), an even number; null for 64."""
    num_groups: int = 1
    """Groups of heads; those of a group share B and C before their biases."""
    mimo_rank: int = 1
    """Inputs and outputs of each head that share its state (R); more than one makes decoding do more with the
    state that it reads (MIMO)."""
    rotary_fraction: float = 0.5
    """Part of the state that rotates: 0.5 or 1."""
    output_norm: bool = False
    """RMSNorm of each head before the gate."""
    dt_min: float = 0.001
    """Smallest time step at initialisation."""
    dt_max: float = 0.1
    """Largest time step at initialisation."""
    A_floor: float = 1e-4
    """Rates of decay below it are raised to it, always."""
    chunk: int = 64
    """Steps that become one matrix product; it changes the speed, not the result."""
    scan: str = "auto"
    """Path of the scan: ``cpp`` (the recurrence in C++, CPU), ``torch`` (chunks in PyTorch), ``reference``
    (plain loop), or ``auto``: ``cpp`` with one input where it can run and is faster, else ``torch``."""

    def __post_init__(self) -> None:
        check_path(self.scan, SOURCES)
        if self.scan == "cpp" and self.mimo_rank > 1:
            raise ValueError(f"scan=cpp needs mimo_rank=1, not {self.mimo_rank}: set scan=auto or scan=torch")
        for name in ("num_heads", "head_dim", "d_state", "num_groups", "mimo_rank", "chunk", "A_floor"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value} must be positive")
        if self.num_heads % self.num_groups:
            raise ValueError(f"num_heads={self.num_heads} must be a multiple of num_groups={self.num_groups}")
        if self.d_state is not None and self.d_state % 2:
            raise ValueError(f"d_state={self.d_state} must be even: pairs of numbers rotate")
        if self.rotary_fraction not in (0.5, 1.0):
            raise ValueError(f"rotary_fraction={self.rotary_fraction} must be 0.5 or 1")
        if not 0 < self.dt_min <= self.dt_max:
            raise ValueError(
                f"dt_min={self.dt_min} and dt_max={self.dt_max} must satisfy 0 < dt_min <= dt_max"
            )


class Mamba3(RecurrentMixer):
    """The Mamba-3 mixer."""

    projections = ("input", "out")

    def __init__(self, d_model: int, config: Mamba3Config, *, norm_eps: float = 1e-5) -> None:
        super().__init__()
        check_installed(config.scan)
        config = config.resolved(d_model)
        assert config.head_dim is not None
        assert config.d_state is not None
        self.config, self.norm_eps = config, norm_eps
        H, P, N, R = config.num_heads, config.head_dim, config.d_state, config.mimo_rank
        self.head_dim, self.d_state = P, N
        self.angles = max(1, int(N * config.rotary_fraction) // 2)
        shared = R * config.num_groups * N
        self.parts = [H * P, H * P, shared, shared, H, H, H, self.angles]
        self.input = nn.Linear(d_model, sum(self.parts), bias=False)
        self.dt_bias_H = nn.Parameter(torch.empty(H))
        self.B_norm_N = nn.Parameter(torch.ones(N))
        self.C_norm_N = nn.Parameter(torch.ones(N))
        self.B_bias_HRN = nn.Parameter(torch.ones(H, R, N))
        self.C_bias_HRN = nn.Parameter(torch.ones(H, R, N))
        for bias in (self.B_bias_HRN, self.C_bias_HRN):
            bias.no_weight_decay = True  # type: ignore[attr-defined]
        self.D_H = nn.Parameter(torch.ones(H))
        if R > 1:
            self.up_x_HRP = nn.Parameter(torch.full((H, R, P), 1 / R))
            self.up_gate_HRP = nn.Parameter(torch.ones(H, R, P))
            self.down_HRP = nn.Parameter(torch.full((H, R, P), 1 / R))
        self.norm_HP = nn.Parameter(torch.ones(H, P)) if config.output_norm else None
        self.out = nn.Linear(H * P, d_model, bias=False)

    @property
    def canon_widths(self) -> dict[str, int]:
        _, x, B, C, *_ = self.parts
        return {"x": x, "B": B, "C": C}

    def scan_path(self) -> str:
        return self.path(self.out.weight)

    def path(self, operand: Tensor) -> str:
        """Return the path of the scan for such an operand."""
        sources = () if self.config.mimo_rank > 1 else SOURCES
        return scan_path(self.config.scan, Scan(operand=operand, kernel="linear attention"), sources)

    def project(self, x_BTD: Tensor) -> tuple[Tensor, ...]:
        return (self.input(x_BTD),)

    def mix(
        self, projected: tuple[Tensor, ...], state: State | None, context: Context
    ) -> tuple[Tensor, State]:
        (all_BTS,) = projected
        state = self.start(all_BTS.shape[0], 0) if state is None else state
        with torch.autocast(all_BTS.device.type, enabled=False):
            compute_dtype = torch.promote_types(all_BTS.dtype, torch.float32)
            y_BTI, after = self._scan(all_BTS.to(compute_dtype), state, context)
        return y_BTI.to(all_BTS.dtype), after

    def _scan(self, all_BTS: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        """Compute all but the projections in at least float32: in bfloat16 the state would lose precision."""
        H = self.config.num_heads
        gate, x, B, C, dt_BTH, rate_BTH, weight_BTH, angle_BTS = all_BTS.split(self.parts, dim=-1)
        x, B, C = (filtered(self, name, part, context) for name, part in {"x": x, "B": B, "C": C}.items())
        gate_BTHP, x_BTHP = gate.unflatten(-1, (H, -1)), x.unflatten(-1, (H, -1))
        delta_BTH = F.softplus(dt_BTH + self.dt_bias_H)
        if context.valid_BT is not None:
            delta_BTH = delta_BTH * context.valid_BT[..., None]  # a zero step leaves the state as it is
        h_BHPN, angle_BHS, x_BHP, B_BHRN = (state[name].to(x.dtype) for name in ("ssm", "angle", "x", "B"))
        turned_BTHS = turned(angle_BTS, delta_BTH, angle_BHS)
        B_BTHRN = rotate(self._vectors(B, self.B_norm_N, self.B_bias_HRN), turned_BTHS)
        C_BTHRN = rotate(self._vectors(C, self.C_norm_N, self.C_bias_HRN), turned_BTHS)
        x_BTHRP = self._inputs(x_BTHP)
        y_BTHRP, last_BHPN = trapezoid(
            x_BTHRP,
            delta_BTH,
            -delta_BTH * heavy_tailed(rate_BTH).clamp_min(self.config.A_floor),
            weight_BTH.sigmoid(),
            B_BTHRN,
            C_BTHRN,
            TrapezoidState(h_BHPN=h_BHPN, x_BHRP=self._inputs(x_BHP), B_BHRN=B_BHRN),
            reset_BT=document_starts(context),
            chunk=self.config.chunk,
            path=self.path(all_BTS),
        )
        after = {
            "ssm": last_BHPN,
            "angle": last_valid(turned_BTHS, angle_BHS, context.valid_BT),
            "x": last_valid(x_BTHP, x_BHP, context.valid_BT),
            "B": last_valid(B_BTHRN, B_BHRN, context.valid_BT),
        }
        y_BTHRP = y_BTHRP + self.D_H[:, None, None] * x_BTHRP
        return self._finish(y_BTHRP, gate_BTHP).flatten(-2), after

    def _vectors(self, shared_BTC: Tensor, norm_N: Tensor, bias_HRN: Tensor) -> Tensor:
        """Return B or C (B, T, H, R, N) of all heads before the rotation."""
        groups = self.config.num_groups
        shared_BTRGN = shared_BTC.unflatten(-1, (self.config.mimo_rank, groups, -1))
        normed_BTRGN = F.rms_norm(shared_BTRGN, norm_N.shape, norm_N.to(shared_BTC.dtype), self.norm_eps)
        return (
            normed_BTRGN.transpose(2, 3).repeat_interleave(self.config.num_heads // groups, dim=2) + bias_HRN
        )

    def _inputs(self, x_BHP: Tensor) -> Tensor:
        """Return the R inputs (..., H, R, P) of each head."""
        x_BHRP = x_BHP[..., None, :]
        return x_BHRP if self.config.mimo_rank == 1 else x_BHRP * self.up_x_HRP

    def _finish(self, y_BTHRP: Tensor, gate_BTHP: Tensor) -> Tensor:
        """Return the gated output (B, T, H, P) of each head."""
        gate_BTHRP = gate_BTHP[..., None, :]
        if self.config.mimo_rank > 1:
            gate_BTHRP = gate_BTHRP * self.up_gate_HRP
        if self.norm_HP is not None:
            y_BTHRP = F.rms_norm(y_BTHRP, y_BTHRP.shape[-1:], eps=self.norm_eps) * self.norm_HP[:, None]
        y_BTHRP = y_BTHRP * F.silu(gate_BTHRP)
        return y_BTHRP.squeeze(3) if self.config.mimo_rank == 1 else (y_BTHRP * self.down_HRP).sum(3)

    def start(self, batch_size: int, max_length: int) -> State:
        H, R, P, N = self.config.num_heads, self.config.mimo_rank, self.head_dim, self.d_state
        compute_dtype = torch.promote_types(self.out.weight.dtype, torch.float32)
        shapes = {"ssm": (H, P, N), "angle": (H, self.angles), "x": (H, P), "B": (H, R, N)}
        return {
            name: self.out.weight.new_zeros(batch_size, *shape, dtype=compute_dtype)
            for name, shape in shapes.items()
        }

    def flops(self, length: int) -> Flops:
        """The recurrence, the D skip (2), and for multiple inputs their scales and the sum of outputs (4)."""
        H, R, P = self.config.num_heads, self.config.mimo_rank, self.head_dim
        scan = trapezoid_flops(length, H, R, P, self.d_state)
        scan += length * H * R * P * (2 if R == 1 else 6)
        return Flops(linear=linear_flops(self, length), mixer=scan)

    def state_bytes(self, length: int, bytes_per_element: int) -> int:
        """All of it in at least float32."""
        R, P, N = self.config.mimo_rank, self.head_dim, self.d_state
        numbers = self.config.num_heads * (P * N + self.angles + P + R * N)
        return numbers * max(bytes_per_element, 4)

    @torch.no_grad()
    def initialise(self, num_branches: int) -> None:
        """Time steps log-uniform in [dt_min, dt_max]; linear layers as PyTorch initialises them."""
        for linear in (self.input, self.out):
            bound = linear.in_features**-0.5
            linear.weight.uniform_(-bound, bound)
        draw_time_steps(self.dt_bias_H, self.config.dt_min, self.config.dt_max)
        self.out.weight.mul_(num_branches**-0.5)


def heavy_tailed(x: Tensor) -> Tensor:
    """Return the rates of decay: ``1 + x`` for positive x, else ``1 / (1 - x)``."""
    return F.relu(x) + (1 - x.clamp_max(0)).reciprocal()  # of which one has the slope at zero


def turned(angle_BTS: Tensor, delta_BTH: Tensor, before_BHS: Tensor) -> Tensor:
    """Return the angles (B, T, H, S) by which the state has turned, between 0 and 2 pi.

    Sums are computed in float64: in float32 they would lose the digits of the angle.
    """
    angle_BTHS = delta_BTH[..., None] * (math.pi * torch.tanh(angle_BTS))[:, :, None]
    sum_BTHS = before_BHS.double()[:, None] + angle_BTHS.double().cumsum(1)
    return sum_BTHS.remainder(2 * math.pi).to(delta_BTH.dtype)


def rotate(x_BTHRN: Tensor, angle_BTHS: Tensor) -> Tensor:
    """Rotate the first S pairs of successive numbers."""
    turned, fixed = x_BTHRN.split(
        [2 * angle_BTHS.shape[-1], x_BTHRN.shape[-1] - 2 * angle_BTHS.shape[-1]], dim=-1
    )
    first, second = turned.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angle_BTHS.cos()[..., None, :], angle_BTHS.sin()[..., None, :]
    pairs = torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1)
    return torch.cat([pairs.flatten(-2), fixed], dim=-1)


def last_valid(x_BTH: Tensor, before_BH: Tensor, valid_BT: Tensor | None) -> Tensor:
    """Return the value (B, H, ...) at the last valid position of each row; that before, if it is missing."""
    if valid_BT is None:
        return x_BTH[:, -1]
    all_BTH = torch.cat([before_BH[:, None], x_BTH], dim=1)
    index_B = valid_BT.sum(1).view(-1, *[1] * (x_BTH.dim() - 1))
    return all_BTH.gather(1, index_B.expand_as(all_BTH[:, :1]))[:, 0]


Config = Mamba3Config
make = Mamba3
