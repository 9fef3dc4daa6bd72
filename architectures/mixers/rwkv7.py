"""The time mixing of RWKV-7 (Peng et al. 2025, arXiv 2503.14456): a memory with a generalised delta rule.

Its channel mixing is not here: the feed-forward of the stack takes that part.

Shapes: B batch, T length, D d_model, H heads, K width of a head (of keys and of values), C = H K channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archbench.architectures.backbone import Flops, linear_flops
from archbench.architectures.fast_paths import Scan, check_installed, check_path, scan_path
from archbench.architectures.layers.block import MixerConfig
from archbench.architectures.layers.canon import filtered
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.linear_attention.base import SOURCES
from archbench.architectures.layers.linear_attention.dplr import dplr, dplr_flops
from archbench.architectures.layers.ssm.recurrent import RecurrentMixer, State, document_starts

RANKS = {"decay_rank": 2.5, "rate_rank": 2.5, "value_rank": 1.7, "gate_rank": 5.0}
"""Each rank is by default this multiple of the square root of the channels, rounded to a multiple of 32."""
INPUTS = ("r", "decay", "k", "v", "rate", "gate")
"""The projections, each of which reads a different mixture of a token and the token before it."""


@dataclass(frozen=True, kw_only=True)
class RWKV7Config(MixerConfig):
    """Settings of RWKV-7; the defaults are the paper's, with fewer heads for small models."""

    num_heads: int = 2
    """Heads, each with a separate memory; d_model / num_heads is rounded to the width of a head."""
    decay_rank: int | None = None
    """Rank of the projection to the decays; null for that of the authors, which grows with d_model."""
    rate_rank: int | None = None
    """Rank of the projection to the learning rates of the memory; null likewise."""
    value_rank: int | None = None
    """Rank of the projection to the weights of the value residual; null likewise."""
    gate_rank: int | None = None
    """Rank of the projection to the output gate; null likewise."""
    value_residual: bool = True
    """Mix the values of the first layer with this mixer into those of all later ones."""
    scan: str = "auto"
    """Path of the recurrence: ``fla`` (flash-linear-attention, CUDA), ``cpp`` (the recurrence in C++, CPU),
    ``torch`` (chunked matrix form), ``reference`` (plain loop), or ``auto``: ``fla`` where it can run, else
    ``cpp`` where it can run and is faster, else ``torch``."""

    def __post_init__(self) -> None:
        check_path(self.scan, SOURCES)
        for name in ("num_heads", *RANKS):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be positive")

    def head_width(self, d_model: int) -> int:
        """Return the width of keys and of values of a head."""
        return max(1, round(d_model / self.num_heads))

    def resolved(self, d_model: int) -> Self:
        root = (self.num_heads * self.head_width(d_model)) ** 0.5
        standard = {name: max(32, 32 * round(factor * root / 32)) for name, factor in RANKS.items()}
        return replace(self, **{name: getattr(self, name) or rank for name, rank in standard.items()})


class LowRank(nn.Module):
    """A projection in two factors, with an activation between them."""

    def __init__(
        self,
        d_model: int,
        rank: int | None,
        channels: int,
        activation: Callable[[Tensor], Tensor] | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        assert rank is not None
        self.down = nn.Linear(d_model, rank, bias=False)
        self.activation = activation
        self.up = nn.Linear(rank, channels, bias=bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        low_BTR = self.down(x_BTD)
        return self.up(low_BTR if self.activation is None else self.activation(low_BTR))

    @torch.no_grad()
    def initialise(self, bias_C: Tensor | None) -> None:
        """Draw orthogonal columns for the second factor, and set its bias."""
        weight_CR = torch.empty_like(self.up.weight)  # orthogonal_ writes into a view of its argument
        gain = 0.1 * max(1.0, (self.up.in_features / self.up.out_features) ** 0.5)
        self.up.weight.copy_(nn.init.orthogonal_(weight_CR, gain=gain))
        if bias_C is not None:
            self.up.bias.copy_(bias_C)


class RWKV7(RecurrentMixer):
    """Token shift, projections, the memory, a norm and a bonus of each head, and a gate."""

    projections = ("out",)  # all others read two tokens

    def __init__(self, d_model: int, config: RWKV7Config, *, norm_eps: float = 1e-5) -> None:
        super().__init__()
        check_installed(config.scan)
        config = config.resolved(d_model)
        self.heads, self.width = config.num_heads, config.head_width(d_model)
        self.scan = config.scan
        self.value_rank = config.value_rank if config.value_residual else None
        self.carries = "rwkv7 values" if config.value_residual else ""
        self.layer, self.layers = 0, 1
        channels = self.heads * self.width
        self.shift_6D = nn.Parameter(torch.empty(len(INPUTS), d_model))
        self.r = nn.Linear(d_model, channels, bias=False)
        self.k = nn.Linear(d_model, channels, bias=False)
        self.v = nn.Linear(d_model, channels, bias=False)
        self.decay = LowRank(d_model, config.decay_rank, channels, torch.tanh)
        self.rate = LowRank(d_model, config.rate_rank, channels)
        self.gate = LowRank(d_model, config.gate_rank, channels, torch.sigmoid, bias=False)
        self.residual: LowRank | None = None
        self.removal_C = nn.Parameter(torch.empty(channels))
        self.key_rate_C = nn.Parameter(torch.empty(channels))
        self.bonus_HK = nn.Parameter(torch.empty(self.heads, self.width))
        for parameter in (self.shift_6D, self.bonus_HK):
            parameter.no_weight_decay = True  # type: ignore[attr-defined]
        self.norm = nn.GroupNorm(self.heads, channels, eps=self.width * norm_eps)
        self.out = nn.Linear(channels, d_model, bias=False)

    def place(self, index: int, count: int) -> None:
        """Add the value residual, unless this is the first layer; initial values depend on the layer."""
        self.layer, self.layers = index, count
        if index > 0 and self.value_rank is not None:
            self.residual = LowRank(self.v.in_features, self.value_rank, self.v.out_features)

    @property
    def canon_widths(self) -> dict[str, int]:
        return {name: getattr(self, name).out_features for name in ("r", "k", "v")}

    def path(self, operand: Tensor) -> str:
        """Return the path of the recurrence for such an operand."""
        heads = (self.width, self.width)
        return scan_path(self.scan, Scan(operand=operand, kernel="linear attention", heads=heads), SOURCES)

    def scan_path(self) -> str:
        return self.path(self.out.weight)

    def project(self, x_BTD: Tensor) -> tuple[Tensor, ...]:
        return (x_BTD,)

    def mix(
        self, projected: tuple[Tensor, ...], state: State | None, context: Context
    ) -> tuple[Tensor, State]:
        (x_BTD,) = projected
        state = self.start(x_BTD.shape[0], 0) if state is None else state
        # Each position from the token before the first to the last.
        tokens_BTD = torch.cat([state["token"].to(x_BTD.dtype), x_BTD], dim=1)
        starts_BT, valid_BT = document_starts(context), context.valid_BT
        before_BTD = tokens_BTD[:, :-1]
        if starts_BT is not None:
            before_BTD = before_BTD.masked_fill(starts_BT[..., None], 0.0)
        inputs = [torch.lerp(x_BTD, before_BTD, shift_D) for shift_D in self.shift_6D.to(x_BTD.dtype)]
        y_BTC, memory_BHKK = self._recall(inputs[:-1], state["memory"], context)
        last_BT = tokens_BTD[:, -1:] if valid_BT is None else _at(tokens_BTD, valid_BT.sum(1))
        return y_BTC * self.gate(inputs[-1]), {"token": last_BT, "memory": memory_BHKK}

    def _recall(self, inputs: list[Tensor], memory_BHKK: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Return what is read (B, T, C), normalised and with the bonus, and the last memory.

        The memory is computed in at least float32: bfloat16 would lose its content. The kernel of fla reads
        its operands in bfloat16 and keeps the memory in float32.
        """
        x_r, x_decay, x_k, x_v, x_rate = inputs
        projected = (
            filtered(self, "r", self.r(x_r), context),
            self.decay(x_decay),
            filtered(self, "k", self.k(x_k), context),
            self._values(x_v, context),
            self.rate(x_rate),
        )
        with torch.autocast(x_r.device.type, enabled=False):
            compute_dtype = torch.promote_types(x_r.dtype, torch.float32)
            path = self.path(projected[0]) if x_r.shape[1] > 1 else "reference"
            dtype = projected[0].dtype if path == "fla" else compute_dtype
            r, decay, k, v, rate = (x.to(compute_dtype).unflatten(-1, (self.heads, -1)) for x in projected)
            removal_HK, key_rate_HK = (
                x.to(compute_dtype).view(self.heads, -1) for x in (self.removal_C, self.key_rate_C)
            )
            rate = rate.sigmoid()
            removed = F.normalize(k * removal_HK, dim=-1)
            k = k * (1 + (rate - 1) * key_rate_HK)
            log_decay = -math.exp(-0.5) * decay.sigmoid()  # decays are above 0.545
            log_decay, recall, stored = masked(log_decay, -removed, k, context)
            y_BTHK, memory_BHKK = dplr(
                r.to(dtype),
                stored.to(dtype),
                v.to(dtype),
                recall.to(dtype),
                (removed * rate).to(dtype),
                log_decay,
                memory_BHKK.to(compute_dtype),
                path=path,
            )
            bonus_BTH1 = (r * k * self.bonus_HK).sum(-1, keepdim=True)
            y_BTC = y_BTHK.flatten(2).to(self.norm.weight.dtype)
            y_BTC = self.norm(y_BTC.flatten(0, 1)).view_as(y_BTC)
            return y_BTC + (bonus_BTH1 * v).flatten(2).to(y_BTC.dtype), memory_BHKK

    def _values(self, x_BTD: Tensor, context: Context) -> Tensor:
        """Return the values (B, T, C), with a part of those of the first layer in all later ones."""
        v_BTC = filtered(self, "v", self.v(x_BTD), context)
        first_BTC = context.carried.setdefault(self.carries, v_BTC) if self.carries else v_BTC
        if self.residual is None:
            return v_BTC
        return torch.lerp(v_BTC, first_BTC, self.residual(x_BTD).sigmoid())

    def start(self, batch_size: int, max_length: int) -> State:
        weight = self.out.weight
        compute_dtype = torch.promote_types(weight.dtype, torch.float32)
        shape = (batch_size, self.heads, self.width, self.width)
        token = weight.new_zeros(batch_size, 1, weight.shape[0])
        return {"token": token, "memory": weight.new_zeros(shape, dtype=compute_dtype)}

    def flops(self, length: int) -> Flops:
        """The recurrence, six mixtures of two tokens (3 for a number) and the bonus (5)."""
        memory = dplr_flops(length, self.heads, self.width, self.width)
        pointwise = length * (3 * self.shift_6D.numel() + 5 * self.heads * self.width)
        return Flops(linear=linear_flops(self, length), mixer=memory + pointwise)

    def state_bytes(self, length: int, bytes_per_element: int) -> int:
        """The last token in the precision of the parameters, the memory in at least float32."""
        memory = self.heads * self.width**2
        return memory * max(bytes_per_element, 4) + self.out.out_features * bytes_per_element

    @torch.no_grad()
    def initialise(self, num_branches: int) -> None:
        """Initialise as the authors' code does, but for two kinds of zeros, which would leave others without
        a gradient: the output projection, which starts like that of other mixers, and the first factors of
        low-rank projections."""
        D, C, K = self.out.out_features, self.out.in_features, self.width
        depth, rest = self.layer / max(1, self.layers - 1), 1 - self.layer / self.layers
        powers = torch.tensor([0.2, 0.9, 0.7, 0.7, 0.9, 0.2])
        self.shift_6D.copy_(1 - (torch.arange(D) / D) ** (powers[:, None] * rest))
        slope_C = torch.arange(C) / max(1, C - 1)
        zigzag_C = torch.linspace(-1, 1, K).repeat(self.heads) if K > 1 else torch.zeros(C)
        zigzag_C = zigzag_C * zigzag_C.abs()
        self.decay.initialise(6 * slope_C ** (1 + depth**0.3) - 5.5 + 2.5 * zigzag_C)
        self.rate.initialise(0.3 * zigzag_C + 0.4 * (slope_C - 0.5) - 0.19)
        self.gate.initialise(None)
        if self.residual is not None:
            self.residual.initialise(0.73 - 0.4 * (slope_C - 0.5))
        self.removal_C.copy_(0.71 - 0.1 * (slope_C - 0.5))
        self.key_rate_C.fill_(1.02)
        self.bonus_HK.fill_(-0.04)
        for linear, bound in ((self.r, 0.5), (self.k, 0.05), (self.v, 0.5)):
            linear.weight.uniform_(-bound * D**-0.5, bound * D**-0.5)
        if not self.borrowed:
            self.out.weight.mul_(num_branches**-0.5)


def masked(
    log_decay_BTHK: Tensor, recall_BTHK: Tensor, k_BTHK: Tensor, context: Context
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same such that a document begins with an empty memory and padding leaves it as it is."""
    starts_BT = document_starts(context)
    if starts_BT is not None:
        log_decay_BTHK = log_decay_BTHK.masked_fill(starts_BT[..., None, None], -math.inf)
        recall_BTHK = recall_BTHK.masked_fill(starts_BT[..., None, None], 0.0)
    if context.valid_BT is not None:
        padding_BT11 = ~context.valid_BT[..., None, None]
        operands = (log_decay_BTHK, recall_BTHK, k_BTHK)
        log_decay_BTHK, recall_BTHK, k_BTHK = (x.masked_fill(padding_BT11, 0.0) for x in operands)
    return log_decay_BTHK, recall_BTHK, k_BTHK


def _at(x_BTD: Tensor, index_B: Tensor) -> Tensor:
    """Return the position (B, 1, D) of each row with the given index."""
    return x_BTD.gather(1, index_B[:, None, None].expand(-1, 1, x_BTD.shape[2]))


Config = RWKV7Config
make = RWKV7
