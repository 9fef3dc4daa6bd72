"""The Mamba mixer: a selective state-space model (Gu and Dao 2023, arXiv 2312.00752).

The layer widens to d_inner channels, filters them with a short causal convolution, runs the selective scan,
and multiplies the result by a gate.

Shapes: B batch, T length, D d_model, C d_inner channels, N state size, R rank
of the time step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archbench.architectures.backbone import Flops, linear_flops
from archbench.architectures.fast_paths import Scan, check_installed, check_path, kernel, scan_path, uses_cpp
from archbench.architectures.layers.block import MixerConfig
from archbench.architectures.layers.canon import filtered
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.ssm.causal_conv1d import CausalConvolution, convolved
from archbench.architectures.layers.ssm.recurrent import (
    RecurrentMixer,
    State,
    document_starts,
    draw_time_steps,
)
from archbench.architectures.layers.ssm.selective_scan import selective_scan, selective_scan_flops

SOURCES = ("mamba_ssm", "cpp")
"""Paths with kernels of the scan, the preferred one first."""


@dataclass(frozen=True, kw_only=True)
class SelectiveConfig(MixerConfig):
    """The Mamba mixer."""

    d_inner: int | None = None
    """Channels of the scan; null for 2 d_model."""
    d_state: int = 16
    """State of each channel (N)."""
    conv_width: int = 4
    """Taps of the causal convolution; 0 for none, only SiLU."""
    conv_bias: bool = True
    """A bias in the convolution."""
    bias: bool = False
    """Biases in the projections in and out."""
    dt_rank: int | None = None
    """Rank of the time-step projection; null for d_model / 16, rounded up."""
    dt_min: float = 0.001
    """Smallest time step at initialisation."""
    dt_max: float = 0.1
    """Largest time step at initialisation."""
    selection_norm: bool = False
    """RMSNorm of the low-rank time step, of B and of C (Jamba: Lieber et al. 2024, arXiv 2403.19887)."""
    selection_norm_weight: bool = True
    """False for these norms without weights (Falcon Mamba: Zuo et al. 2024, arXiv 2410.05355)."""
    selection_norm_eps: float | None = None
    """Added to the mean square in these norms; null for ``norm_eps``."""
    negative_eigenvalues: bool = False
    """Decays in [-1, 1] instead of [0, 1], which can track states (Grazzi et al. 2024, arXiv 2411.12537)."""
    scan: str = "auto"
    """Path of the scan: ``mamba_ssm`` (mamba-ssm and causal-conv1d, CUDA; no packed documents), ``cpp`` (C++,
    float32 on a CPU), ``torch`` (chunks in PyTorch with an explicit gradient), ``reference`` (plain loop), or
    ``auto``: the first of mamba_ssm, cpp and torch that can run. Decoding with ``mamba_ssm`` uses the torch
    path. The convolution and the gate use the same path."""

    def __post_init__(self) -> None:
        check_path(self.scan, SOURCES)
        for name in ("d_inner", "dt_rank", "d_state"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be positive")
        if self.conv_width < 0:
            raise ValueError(f"conv_width={self.conv_width} must be positive, or 0 for no convolution")
        if self.selection_norm_eps is not None and self.selection_norm_eps <= 0:
            raise ValueError(f"selection_norm_eps={self.selection_norm_eps} must be positive, or null")
        if not 0 < self.dt_min <= self.dt_max:
            raise ValueError(
                f"dt_min={self.dt_min} and dt_max={self.dt_max} must satisfy 0 < dt_min <= dt_max"
            )

    def resolved(self, d_model: int) -> Self:
        """Return the configuration with every null replaced by its default for this width."""
        return replace(
            self, d_inner=self.d_inner or 2 * d_model, dt_rank=self.dt_rank or math.ceil(d_model / 16)
        )


class SelectiveSSM(RecurrentMixer):
    """The Mamba mixer."""

    projections = ("input", "out")
    decode_kernel = "decode mamba"

    def __init__(self, d_model: int, config: SelectiveConfig, *, norm_eps: float = 1e-5) -> None:
        super().__init__()
        check_installed(config.scan)
        config = config.resolved(d_model)
        assert config.d_inner is not None
        assert config.dt_rank is not None
        self.config = config
        self.parts = [config.dt_rank, config.d_state, config.d_state]
        self.input = nn.Linear(d_model, 2 * config.d_inner, bias=config.bias)
        self.convolution = None
        if config.conv_width:
            self.convolution = CausalConvolution(config.d_inner, config.conv_width, bias=config.conv_bias)
        self.select = nn.Linear(config.d_inner, sum(self.parts), bias=False)
        self.dt = nn.Linear(config.dt_rank, config.d_inner)
        self.A_log_CN = nn.Parameter(torch.empty(config.d_inner, config.d_state))
        self.D_C = nn.Parameter(torch.ones(config.d_inner))
        self.out = nn.Linear(config.d_inner, d_model, bias=config.bias)
        self.norms = None
        if config.selection_norm:
            eps, weighted = config.selection_norm_eps or norm_eps, config.selection_norm_weight
            self.norms = nn.ModuleList(
                nn.RMSNorm(width, eps=eps, elementwise_affine=weighted) for width in self.parts
            )
        # Decay would pull the time scales of the memory towards a constant.
        self.A_log_CN.no_weight_decay = True  # type: ignore[attr-defined]

    @property
    def canon_widths(self) -> dict[str, int]:
        return {"input": len(self.D_C)}

    def project(self, x_BTD: Tensor) -> tuple[Tensor, ...]:
        return (self.input(x_BTD),)

    def mix(
        self, projected: tuple[Tensor, ...], state: State | None, context: Context
    ) -> tuple[Tensor, State]:
        valid_BT, reset_BT = context.valid_BT, document_starts(context)
        assert state is None or reset_BT is None
        (both_BTI,) = projected
        path = self.path(both_BTI, continued=state is not None, packed=reset_BT is not None)
        u_BTC, gate_BTC = both_BTI.chunk(2, dim=-1)
        u_BTC = filtered(self, "input", u_BTC, context)
        if valid_BT is not None:
            u_BTC = u_BTC * valid_BT[..., None]
        u_BTC, after = convolved(self.convolution, u_BTC, state, context, path)
        state_BCN = None if state is None else state["ssm"]
        y_BTC, after["ssm"] = self._scan(u_BTC, gate_BTC, state_BCN, valid_BT, reset_BT, path)
        return y_BTC, after

    def _scan(
        self,
        u_BTC: Tensor,
        gate_BTC: Tensor,
        state_BCN: Tensor | None,
        valid_BT: Tensor | None,
        reset_BT: Tensor | None,
        path: str,
    ) -> tuple[Tensor, Tensor]:
        """Return the gated output of the scan and its last state, in at least float32, because bfloat16
        is not precise enough."""
        selected = self.select(u_BTC).split(self.parts, dim=-1)
        if self.norms is not None:
            selected = [norm(part) for norm, part in zip(self.norms, selected, strict=True)]
        dt_BTR, B_BTN, C_BTN = selected
        delta_BTC = self.dt(dt_BTR)
        with torch.autocast(u_BTC.device.type, enabled=False):
            compute_dtype = torch.promote_types(u_BTC.dtype, torch.float32)
            delta_BTC = F.softplus(delta_BTC.to(compute_dtype))
            if valid_BT is not None:
                delta_BTC = delta_BTC * valid_BT[..., None]  # a zero step does not change the state
            u_wide = u_BTC.to(compute_dtype)
            y_BTC, last_BCN = selective_scan(
                u_wide,
                delta_BTC,
                -self.A_log_CN.to(compute_dtype).exp(),
                B_BTN.to(compute_dtype),
                C_BTN.to(compute_dtype),
                None if state_BCN is None else state_BCN.to(compute_dtype),
                reset_BT=reset_BT,
                negative=self.config.negative_eigenvalues,
                path=path,
            )
            if path == "cpp" and uses_cpp("skip and gate", y_BTC, u_wide, gate_BTC):
                return kernel("finish")(y_BTC, u_wide, gate_BTC, self.D_C).to(u_BTC.dtype), last_BCN
            y_BTC = y_BTC + self.D_C * u_wide
        return y_BTC.to(u_BTC.dtype) * F.silu(gate_BTC), last_BCN

    def path(self, operand: Tensor, *, continued: bool = False, packed: bool = False) -> str:
        """Return the path of the scan for such an operand; ``mamba_ssm`` cannot continue a state."""
        if continued and self.config.scan == "mamba_ssm":
            return "torch"
        unsupported = "eigenvalues below zero" if self.config.negative_eigenvalues else ""
        if packed or continued:
            unsupported = "packed documents" if packed else "a state to continue"
        scan = Scan(
            operand=operand,
            convolution=(self.D_C.shape[0], self.config.conv_width),
            state=self.config.d_state,
            unsupported=unsupported,
        )
        return scan_path(self.config.scan, scan, SOURCES)

    def scan_path(self) -> str:
        return self.path(self.D_C)

    def start(self, batch_size: int, max_length: int) -> State:
        compute_dtype = torch.promote_types(self.A_log_CN.dtype, torch.float32)
        ssm = self.A_log_CN.new_zeros(batch_size, *self.A_log_CN.shape, dtype=compute_dtype)
        if self.convolution is None:
            return {"ssm": ssm}
        return {"window": self.convolution.start(batch_size), "ssm": ssm}

    def flops(self, length: int) -> Flops:
        channels, state = self.A_log_CN.shape
        scan = selective_scan_flops(length, channels, state) + 2 * length * channels  # and the D skip
        convolution = 0 if self.convolution is None else self.convolution.flops(length)
        return Flops(linear=linear_flops(self, length) + convolution, mixer=scan)

    def state_bytes(self, length: int, bytes_per_element: int) -> int:
        """The window in the precision of the parameters, the state in at least float32."""
        channels, state = self.A_log_CN.shape
        window = 0 if self.convolution is None else self.convolution.width - 1
        return channels * (state * max(bytes_per_element, 4) + window * bytes_per_element)

    @torch.no_grad()
    def initialise(self, num_branches: int) -> None:
        """Time steps log-uniform in [dt_min, dt_max]; A = -(1..N) in each channel (section 3.6)."""
        if self.convolution is not None:
            self.convolution.initialise()
        for linear in (self.input, self.select, self.out):
            bound = linear.in_features**-0.5
            linear.weight.uniform_(-bound, bound)
        bound = self.dt.in_features**-0.5
        self.dt.weight.uniform_(-bound, bound)
        draw_time_steps(self.dt.bias, self.config.dt_min, self.config.dt_max)
        state = torch.arange(1, self.config.d_state + 1, dtype=torch.float32, device=self.A_log_CN.device)
        self.A_log_CN.copy_(state.log().expand_as(self.A_log_CN))
        self.out.weight.mul_(num_branches**-0.5)


Config = SelectiveConfig
make = SelectiveSSM
