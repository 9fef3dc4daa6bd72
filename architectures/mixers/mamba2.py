"""The Mamba-2 mixer: a state-space model with a scan by matrix products (Dao and Gu 2024, arXiv 2405.21060).

The layer widens to heads, filters them, B and C with a short causal convolution, runs the recurrence with one
decay for each head, then applies the gate and the norm.

Shapes: B batch, T length, D d_model, H heads, P head_dim, I = H P channels, G groups
of heads that share B and C, N state size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archbench.architectures.backbone import Flops, linear_flops
from archbench.architectures.fast_paths import Scan, check_installed, check_path, kernel, scan_path, uses_cpp
from archbench.architectures.layers.canon import filtered
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.ssm.causal_conv1d import CausalConvolution, convolved
from archbench.architectures.layers.ssm.heads_config import HeadsConfig
from archbench.architectures.layers.ssm.recurrent import (
    RecurrentMixer,
    State,
    document_starts,
    draw_time_steps,
)
from archbench.architectures.layers.ssm.ssd import ssd, ssd_flops

NORMS = ("after_gate", "before_gate", "none")
SOURCES = ("mamba_ssm", "cpp", "fla")
"""Paths with kernels of the scan, the preferred one first; a device has kernels of one or two of them."""


@dataclass(frozen=True, kw_only=True)
class SSDConfig(HeadsConfig):
    """The Mamba-2 mixer."""

    num_groups: int = 1
    """Groups of heads; those of a group share B and C."""
    conv_width: int = 4
    """Taps of the causal convolution; 0 for none, only SiLU."""
    conv_bias: bool = True
    """A bias in the convolution."""
    bias: bool = False
    """Biases in the projections in and out."""
    norm: str = "after_gate"
    """The RMSNorm of each group before the projection out: ``after_gate`` norm(y silu(z)),
    ``before_gate`` norm(y) silu(z), ``none`` y silu(z)."""
    dt_min: float = 0.001
    """Smallest time step at initialisation."""
    dt_max: float = 0.1
    """Largest time step at initialisation."""
    dt_floor: float = 0.0
    """Time steps below it are raised to it, always."""
    dt_ceiling: float | None = None
    """Time steps above it are lowered to it, always; null for no such limit."""
    A_min: float = 1.0
    """Smallest decay rate at initialisation."""
    A_max: float = 16.0
    """Largest decay rate at initialisation."""
    negative_eigenvalues: bool = False
    """Decays in [-1, 1] instead of [0, 1], which can track states (Grazzi et al. 2024, arXiv 2411.12537)."""
    chunk: int = 64
    """Steps that become one matrix product; it changes the speed, not the result."""
    scan: str = "auto"
    """Path of the scan: ``mamba_ssm`` (mamba-ssm and causal-conv1d, CUDA), ``fla`` (flash-linear-attention,
    CUDA), ``cpp`` (C++, float32 on a CPU), ``torch`` (chunks in PyTorch), ``reference``
    (plain loop), or ``auto``: the first of mamba_ssm, fla, cpp and torch that can run. The convolution, the
    gate and the norm take the same path, or PyTorch with ``fla``."""

    def __post_init__(self) -> None:
        check_path(self.scan, SOURCES)
        if self.norm not in NORMS:
            raise ValueError(f"norm={self.norm!r} must be one of {', '.join(NORMS)}")
        for name in ("num_heads", "head_dim", "d_state", "num_groups", "chunk"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be positive")
        if self.conv_width < 0:
            raise ValueError(f"conv_width={self.conv_width} must be positive, or 0 for no convolution")
        if self.num_heads % self.num_groups:
            raise ValueError(f"num_heads={self.num_heads} must be a multiple of num_groups={self.num_groups}")
        for low, high in (("dt_min", "dt_max"), ("A_min", "A_max")):
            if not 0 < getattr(self, low) <= getattr(self, high):
                raise ValueError(
                    f"{low}={getattr(self, low)} and {high}={getattr(self, high)} must satisfy "
                    f"0 < {low} <= {high}"
                )
        if self.dt_floor < 0 or (self.dt_ceiling is not None and self.dt_ceiling < self.dt_floor):
            raise ValueError(
                f"dt_floor={self.dt_floor} must not be negative, nor above dt_ceiling={self.dt_ceiling}"
            )


class GatedNorm(nn.Module):
    """The gate, and RMSNorm over each group of channels before or after it, in at least float32."""

    def __init__(self, channels: int, groups: int, eps: float, *, before_gate: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.groups, self.eps, self.before_gate = groups, eps, before_gate

    def forward(self, y_BTI: Tensor, gate_BTI: Tensor) -> Tensor:
        compute_dtype = torch.promote_types(y_BTI.dtype, torch.float32)
        y_BTI, gate_BTI = y_BTI.to(compute_dtype), F.silu(gate_BTI.to(compute_dtype))
        if self.before_gate:
            return self._norm(y_BTI) * gate_BTI
        return self._norm(y_BTI * gate_BTI)

    def _norm(self, y_BTI: Tensor) -> Tensor:
        y_BTGJ = y_BTI.unflatten(-1, (self.groups, -1))
        return F.rms_norm(y_BTGJ, y_BTGJ.shape[-1:], eps=self.eps).flatten(-2) * self.weight


class SSD(RecurrentMixer):
    """The Mamba-2 mixer."""

    projections = ("input", "out")
    decode_kernel = "decode mamba2"

    def __init__(self, d_model: int, config: SSDConfig, *, norm_eps: float = 1e-5) -> None:
        super().__init__()
        check_installed(config.scan)
        config = config.resolved(d_model)
        assert config.head_dim is not None
        assert config.d_state is not None
        self.config = config
        self.d_state = config.d_state
        self.channels = config.num_heads * config.head_dim
        shared = config.num_groups * config.d_state
        convolved = self.channels + 2 * shared
        self.parts = [self.channels, convolved, config.num_heads]
        self.convolved = [self.channels, shared, shared]
        self.input = nn.Linear(d_model, sum(self.parts), bias=config.bias)
        self.convolution = None
        if config.conv_width:
            self.convolution = CausalConvolution(convolved, config.conv_width, bias=config.conv_bias)
        self.dt_bias_H = nn.Parameter(torch.empty(config.num_heads))
        self.A_log_H = nn.Parameter(torch.empty(config.num_heads))
        self.D_H = nn.Parameter(torch.ones(config.num_heads))
        self.norm = None
        if config.norm != "none":
            before_gate = config.norm == "before_gate"
            self.norm = GatedNorm(self.channels, config.num_groups, norm_eps, before_gate=before_gate)
        self.out = nn.Linear(self.channels, d_model, bias=config.bias)

    @property
    def canon_widths(self) -> dict[str, int]:
        return {"input": sum(self.convolved)}

    def project(self, x_BTD: Tensor) -> tuple[Tensor, ...]:
        return (self.input(x_BTD),)

    def mix(
        self, projected: tuple[Tensor, ...], state: State | None, context: Context
    ) -> tuple[Tensor, State]:
        valid_BT, reset_BT = context.valid_BT, document_starts(context)
        assert state is None or reset_BT is None
        (all_BTS,) = projected
        path = self.path(all_BTS, packed=reset_BT is not None)
        gate_BTI, u_BTC, dt_BTH = all_BTS.split(self.parts, dim=-1)
        u_BTC = filtered(self, "input", u_BTC, context)
        if valid_BT is not None:
            u_BTC = u_BTC * valid_BT[..., None]
        u_BTC, after = convolved(self.convolution, u_BTC, state, context, path)
        state_BHPN = None if state is None else state["ssm"]
        with torch.autocast(all_BTS.device.type, enabled=False):
            y_BTHP, x_BTHP, after["ssm"] = self._scan(u_BTC, dt_BTH, state_BHPN, valid_BT, reset_BT, path)
            y_BTI = self._finish(y_BTHP, x_BTHP, gate_BTI, path)
        return y_BTI.to(all_BTS.dtype), after

    def _scan(
        self,
        u_BTC: Tensor,
        dt_BTH: Tensor,
        state_BHPN: Tensor | None,
        valid_BT: Tensor | None,
        reset_BT: Tensor | None,
        path: str,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return output, input and last state of the scan, in at least float32: in bfloat16 the
        state would lose precision."""
        c = self.config
        compute_dtype = torch.promote_types(u_BTC.dtype, torch.float32)
        delta_BTH = F.softplus(dt_BTH.to(compute_dtype) + self.dt_bias_H.to(compute_dtype)).clamp(
            c.dt_floor, c.dt_ceiling
        )
        if valid_BT is not None:
            delta_BTH = delta_BTH * valid_BT[..., None]  # a zero step leaves the state as it is
        x_BTI, B_BTS, C_BTS = u_BTC.to(compute_dtype).split(self.convolved, dim=-1)
        x_BTHP = x_BTI.unflatten(-1, (c.num_heads, -1))
        y_BTHP, last_BHPN = ssd(
            x_BTHP,
            delta_BTH,
            -self.A_log_H.to(compute_dtype).exp(),
            B_BTS.unflatten(-1, (c.num_groups, -1)),
            C_BTS.unflatten(-1, (c.num_groups, -1)),
            None if state_BHPN is None else state_BHPN.to(compute_dtype),
            reset_BT=reset_BT,
            negative=c.negative_eigenvalues,
            chunk=c.chunk,
            path=path,
        )
        return y_BTHP, x_BTHP, last_BHPN

    def _finish(self, y_BTHP: Tensor, x_BTHP: Tensor, gate_BTI: Tensor, path: str) -> Tensor:
        """Apply skip, gate and norm."""
        if path == "cpp" and (self.norm is not None or uses_cpp("skip and gate", y_BTHP, x_BTHP, gate_BTI)):
            D_I = self.D_H.repeat_interleave(y_BTHP.shape[-1])
            y_BTI, x_BTI = y_BTHP.flatten(-2), x_BTHP.flatten(-2)
            if self.norm is None:
                return kernel("finish")(y_BTI, x_BTI, gate_BTI, D_I)
            return kernel("finish")(
                y_BTI,
                x_BTI,
                gate_BTI,
                D_I,
                norm=self.config.norm,
                weight_C=self.norm.weight,
                groups=self.norm.groups,
                eps=self.norm.eps,
            )
        y_BTI = (y_BTHP + self.D_H.to(y_BTHP.dtype)[:, None] * x_BTHP).flatten(-2)
        return y_BTI * F.silu(gate_BTI.to(y_BTI.dtype)) if self.norm is None else self.norm(y_BTI, gate_BTI)

    def path(self, operand: Tensor, *, packed: bool = False) -> str:
        """Return the path of the scan for such an operand."""
        scan = Scan(
            operand=operand,
            convolution=(sum(self.convolved), self.config.conv_width),
            heads=(self.d_state, self.channels // self.config.num_heads),
            packed=packed,
            unsupported="eigenvalues below zero" if self.config.negative_eigenvalues else "",
        )
        return scan_path(self.config.scan, scan, SOURCES)

    def scan_path(self) -> str:
        return self.path(self.D_H)

    def start(self, batch_size: int, max_length: int) -> State:
        compute_dtype = torch.promote_types(self.A_log_H.dtype, torch.float32)
        shape = (batch_size, self.config.num_heads, self.channels // self.config.num_heads, self.d_state)
        ssm = self.A_log_H.new_zeros(shape, dtype=compute_dtype)
        if self.convolution is None:
            return {"ssm": ssm}
        return {"window": self.convolution.start(batch_size), "ssm": ssm}

    def flops(self, length: int) -> Flops:
        heads = self.config.num_heads
        scan = ssd_flops(length, heads, self.channels // heads, self.d_state)
        scan += 2 * length * self.channels  # the D skip
        convolution = 0 if self.convolution is None else self.convolution.flops(length)
        return Flops(linear=linear_flops(self, length) + convolution, mixer=scan)

    def state_bytes(self, length: int, bytes_per_element: int) -> int:
        """The window in the precision of the parameters, the state in at least float32."""
        window = 0 if self.convolution is None else (self.convolution.width - 1) * sum(self.convolved)
        return self.channels * self.d_state * max(bytes_per_element, 4) + window * bytes_per_element

    @torch.no_grad()
    def initialise(self, num_branches: int) -> None:
        """Time steps log-uniform in [dt_min, dt_max]; rates of decay uniform in [A_min, A_max]."""
        if self.convolution is not None:
            self.convolution.initialise()
        for linear in (self.input, self.out):
            bound = linear.in_features**-0.5
            linear.weight.uniform_(-bound, bound)
        draw_time_steps(self.dt_bias_H, self.config.dt_min, self.config.dt_max)
        self.A_log_H.uniform_(self.config.A_min, self.config.A_max).log_()
        self.out.weight.mul_(num_branches**-0.5)


Config = SSDConfig
make = SSD
