"""Base of mixers with one matrix of memory for each head.

They project to queries, keys and values, filter them with a short causal
convolution, read and update the memory, normalise each head, gate, and project
back. They differ in how the memory decays and how it is updated.

Shapes: B batch, T length, D d_model, H heads, K key width, V value width of a
head, C channels of queries, keys and values together, W inputs of a window, S updates of all tokens, U of
one token. Where the heads of queries and keys are fewer than those of values, they are repeated first, so
that all are H.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archbench.architectures.backbone import Flops, linear_flops
from archbench.architectures.fast_paths import Scan, check_installed, check_path, kernel, scan_path
from archbench.architectures.layers.block import MixerConfig
from archbench.architectures.layers.canon import filtered
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.normalization import rms_norm
from archbench.architectures.layers.ssm.causal_conv1d import CausalConvolution, convolved
from archbench.architectures.layers.ssm.recurrent import RecurrentMixer, State, document_starts

SOURCES = ("fla", "cpp")
"""Paths with kernels of the recurrences, the preferred one first."""


@dataclass(frozen=True, kw_only=True)
class LinearMixerConfig(MixerConfig):
    """Settings of every mixer of linear attention."""

    num_heads: int = 2
    """Heads, each with a separate memory."""
    expand_k: float = 1.0
    """Width of the keys of all heads together, as a multiple of d_model; each head gets an integer width."""
    expand_v: float = 1.0
    """Width of the values of all heads together, likewise."""
    conv_width: int = 4
    """Taps of the causal convolution on queries, keys and values, and then SiLU; 0 for neither."""
    output_gate: bool = True
    """Multiply the normalised output by SiLU of a projection of the input."""
    scan: str = "auto"
    """Path of the recurrence: ``fla`` (flash-linear-attention, CUDA), ``cpp`` (the recurrence in C++, CPU),
    ``torch`` (chunked matrix form), ``reference`` (plain loop), or ``auto``: ``fla`` where it can run, else
    ``cpp`` where it can run and is faster, else ``torch``."""

    def __post_init__(self) -> None:
        check_path(self.scan, SOURCES)
        for name in ("num_heads", "expand_k", "expand_v"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)} must be positive")
        if self.conv_width < 0:
            raise ValueError(f"conv_width={self.conv_width} must be positive, or 0 for no convolution")


class LinearMixer(RecurrentMixer):
    """The common part; subclasses define how the memory decays and is updated."""

    projections = ("qkv", "gate", "out")
    gate_is_silu: ClassVar[bool] = True
    """True where the output is multiplied by SiLU of the gate, else by its sigmoid."""

    def __init__(
        self,
        d_model: int,
        config: LinearMixerConfig,
        *,
        norm_eps: float = 1e-5,
        value_heads: int | None = None,
        updates: int = 1,
    ) -> None:
        super().__init__()
        check_installed(config.scan)
        self.heads = config.num_heads
        self.value_heads = value_heads or self.heads
        """Heads of values, and memories; consecutive ones share the queries and keys of one head."""
        self.updates = updates
        """Keys and values of each token, with which the memory is updated one after the other."""
        self.key_width = max(1, round(config.expand_k * d_model / self.heads))
        self.value_width = max(1, round(config.expand_v * d_model / self.value_heads))
        self.scan = config.scan
        keys, values = self.heads * self.key_width, self.value_heads * self.value_width
        self.sizes = [keys, keys * updates, values * updates]
        self.qkv = nn.Linear(d_model, sum(self.sizes), bias=False)
        self.convolution = None
        if config.conv_width:
            self.convolution = CausalConvolution(sum(self.sizes), config.conv_width, bias=False)
        self.gate: nn.Module | None = None
        if config.output_gate:
            self.gate = nn.Linear(d_model, values, bias=False)
        self.norm = nn.RMSNorm(self.value_width, eps=norm_eps)
        self.out = nn.Linear(values, d_model, bias=False)

    def log_decay(self, x_BTD: Tensor) -> Tensor | None:
        """Return the logarithm of the decays, in at least float32: (B, T, H) or (B, T, H, K), or None, with
        which the memory does not decay."""
        return None

    def keys_and_decay(self, x_BTD: Tensor, k_BTUHK: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the keys and the logarithm of the decays, before padding and starts of documents are masked.

        A subclass overrides it if its keys and decays depend on each other, such as keys of one minus the
        decay.
        """
        return k_BTUHK, self.log_decay(x_BTD)

    @abstractmethod
    def remember(
        self,
        x_BTD: Tensor,
        q_BTHK: Tensor,
        k_BSHK: Tensor,
        v_BSHV: Tensor,
        log_decay: Tensor | None,
        memory_BHKV: Tensor | None,
        path: str,
    ) -> tuple[Tensor, Tensor]:
        """Return what queries read (B, T, H, V), and the last memory (B, H, K, V).

        ``path`` is that of a recurrence of this package: ``gated_linear_attention`` and ``delta_rule``, which
        divide queries by the root of K, or ``dplr``.
        """

    @property
    def canon_widths(self) -> dict[str, int]:
        return {"qkv": sum(self.sizes)}

    def path(self, operand: Tensor) -> str:
        """Return the path of the recurrence for such an operand."""
        heads = (self.key_width, self.value_width)
        return scan_path(self.scan, Scan(operand=operand, kernel="linear attention", heads=heads), SOURCES)

    def scan_path(self) -> str:
        return self.path(self.out.weight)

    def project(self, x_BTD: Tensor) -> tuple[Tensor, ...]:
        gate = () if self.gate is None else (self.gate(x_BTD),)
        return (x_BTD, self.qkv(x_BTD), *gate)

    def mix(
        self, projected: tuple[Tensor, ...], state: State | None, context: Context
    ) -> tuple[Tensor, State]:
        x_BTD = projected[0]
        qkv_BTC = filtered(self, "qkv", projected[1], context)
        path = self.path(qkv_BTC)
        after: State = {}
        if self.convolution is not None:
            local = "cpp" if path == "cpp" else "torch"
            qkv_BTC, after = convolved(self.convolution, qkv_BTC, state, context, local)
        memory_BHKV = None if state is None else state["memory"]
        path = path if qkv_BTC.shape[1] > 1 else "reference"
        y_BTHV, after["memory"] = self._recall(x_BTD, qkv_BTC, memory_BHKV, context, path)
        y_BTHV = y_BTHV.to(self.norm.weight.dtype)
        return self._finish(y_BTHV, projected[2] if self.gate else None, path), after

    def _finish(self, y_BTHV: Tensor, gate_BTC: Tensor | None, path: str) -> Tensor:
        """Normalise each head, and gate."""
        assert self.norm.eps is not None
        if gate_BTC is None:
            return rms_norm(y_BTHV, self.norm.weight, self.norm.eps).flatten(2)
        if path == "cpp":
            y_BTC = kernel("finish")(
                y_BTHV.flatten(2),
                None,
                gate_BTC,
                None,
                silu=self.gate_is_silu,
                norm="before_gate",
                weight_C=self.norm.weight.repeat(self.value_heads),
                groups=self.value_heads,
                eps=self.norm.eps,
            )
            return y_BTC.to(y_BTHV.dtype)
        y_BTC = self.norm(y_BTHV).flatten(2)
        return y_BTC * (F.silu(gate_BTC) if self.gate_is_silu else gate_BTC.sigmoid())

    def _recall(
        self, x_BTD: Tensor, qkv_BTC: Tensor, memory_BHKV: Tensor | None, context: Context, path: str
    ) -> tuple[Tensor, Tensor]:
        """Compute the memory in at least float32: bfloat16 would lose its content.

        The kernels of fla read their operands in bfloat16 and keep the memory in float32.
        """
        compute_dtype = torch.promote_types(qkv_BTC.dtype, torch.float32)
        counts = ((1, self.heads), (self.updates, self.heads), (self.updates, self.value_heads))
        q, k, v = (
            part.unflatten(-1, (*count, -1)).to(qkv_BTC.dtype if path == "fla" else compute_dtype)
            for count, part in zip(counts, qkv_BTC.split(self.sizes, dim=-1), strict=True)
        )
        if self.value_heads != self.heads:
            q, k = (part.repeat_interleave(self.value_heads // self.heads, dim=3) for part in (q, k))
        k, log_decay = self.keys_and_decay(x_BTD, k)
        starts_BT = document_starts(context)
        if starts_BT is not None:
            # A document begins with an empty memory.
            if log_decay is None:
                log_decay = torch.zeros_like(v[:, :, 0, :, 0], dtype=compute_dtype)
            log_decay = _fill(log_decay, starts_BT, -math.inf)
        if context.valid_BT is not None:
            # Padding neither updates the memory, because its key is zero, nor lets it decay.
            k = k * context.valid_BT[..., None, None, None]
            log_decay = None if log_decay is None else _fill(log_decay, ~context.valid_BT, 0.0)
        memory_BHKV = None if memory_BHKV is None else memory_BHKV.to(compute_dtype)
        q_BTHK, k_BSHK, v_BSHV = (part.flatten(1, 2) for part in (q, k, v))
        return self.remember(x_BTD, q_BTHK, k_BSHK, v_BSHV, log_decay, memory_BHKV, path)

    def start(self, batch_size: int, max_length: int) -> State:
        shape = (batch_size, self.value_heads, self.key_width, self.value_width)
        state = {"memory": self.out.weight.new_zeros(shape)}
        return state if self.convolution is None else state | {"window": self.convolution.start(batch_size)}

    @abstractmethod
    def memory_flops(self, length: int) -> int:
        """FLOPs of the recurrence. The chunked form spends more of them, on matrix products."""

    def flops(self, length: int) -> Flops:
        linear = linear_flops(self, length)
        if self.convolution is not None:
            linear += self.convolution.flops(length)
        return Flops(linear=linear, mixer=self.memory_flops(length))

    def state_bytes(self, length: int, bytes_per_element: int) -> int:
        numbers = self.value_heads * self.key_width * self.value_width
        if self.convolution is not None:
            numbers += sum(self.sizes) * (self.convolution.width - 1)
        return numbers * bytes_per_element

    @torch.no_grad()
    def initialise(self, num_branches: int) -> None:
        if self.convolution is not None:
            self.convolution.initialise()
        if not self.borrowed:
            self.out.weight.mul_(num_branches**-0.5)


def _fill(log_decay: Tensor, mask_BT: Tensor, value: float) -> Tensor:
    """``log_decay``, of any number of dimensions after B and T, with ``value`` where the mask is True."""
    return log_decay.masked_fill(mask_BT.view(*mask_BT.shape, *[1] * (log_decay.dim() - 2)), value)
