"""The mixer of xLSTM 7B (Beck et al. 2025, arXiv 2503.13427): a matrix memory with exponential gates.

Shapes: B batch, T length, D d_model, H heads, K key width, V value width of a head, C values of all heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archbench.architectures.backbone import Flops, linear_flops
from archbench.architectures.fast_paths import check_path
from archbench.architectures.layers.block import MixerConfig
from archbench.architectures.layers.canon import filtered
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.linear_attention.mlstm import mlstm, mlstm_flops
from archbench.architectures.layers.ssm.recurrent import RecurrentMixer, State, document_starts


@dataclass(frozen=True, kw_only=True)
class MLSTMConfig(MixerConfig):
    """Settings of mLSTM; the defaults are those of xLSTM 7B, with fewer heads for small models."""

    num_heads: int = 2
    """Heads, each with a separate memory."""
    expand_k: float = 0.5
    """Width of the keys of all heads together, as a multiple of d_model; each head gets an integer width."""
    expand_v: float = 1.0
    """Width of the values of all heads together, likewise."""
    gate_cap: float | None = 15.0
    """The gates' inputs become c tanh(x / c); null for as they are."""
    normaliser_eps: float = 1e-6
    """Added to what the output is divided by."""
    scan: str = "auto"
    """Path of the recurrence: ``torch`` (chunked matrix form), ``reference`` (plain loop), ``auto``."""

    def __post_init__(self) -> None:
        check_path(self.scan)
        for name in ("num_heads", "expand_k", "expand_v", "normaliser_eps"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)} must be positive")
        if self.gate_cap is not None and self.gate_cap <= 0:
            raise ValueError(f"gate_cap={self.gate_cap} must be positive, or null")

    def widths(self, d_model: int) -> tuple[int, int]:
        """Return the width of keys and of values of a head."""
        key, value = (round(x * d_model / self.num_heads) for x in (self.expand_k, self.expand_v))
        return max(1, key), max(1, value)

    def resolved(self, d_model: int) -> Self:
        """Return the same with the widths that heads really get."""
        keys, values = (self.num_heads * width / d_model for width in self.widths(d_model))
        return replace(self, expand_k=keys, expand_v=values)


class MLSTM(RecurrentMixer):
    """Projections, the matrix memory, a norm of each head, and a sigmoid gate."""

    projections = ("q", "k", "v", "gate", "out")

    def __init__(self, d_model: int, config: MLSTMConfig, *, norm_eps: float = 1e-5) -> None:
        super().__init__()
        self.heads, self.cap, self.eps = config.num_heads, config.gate_cap, config.normaliser_eps
        self.norm_eps = norm_eps
        self.key_width, self.value_width = config.widths(d_model)
        self.path = "torch" if config.scan == "auto" else config.scan
        keys, values = self.heads * self.key_width, self.heads * self.value_width
        self.q = nn.Linear(d_model, keys, bias=False)
        self.k = nn.Linear(d_model, keys, bias=False)
        self.v = nn.Linear(d_model, values, bias=False)
        self.gate = nn.Linear(d_model, values, bias=False)
        self.input_gate = nn.Linear(d_model, self.heads)
        self.forget_gate = nn.Linear(d_model, self.heads)
        self.norm_C = nn.Parameter(torch.ones(values))
        self.out = nn.Linear(values, d_model, bias=False)

    @property
    def canon_widths(self) -> dict[str, int]:
        return {name: getattr(self, name).out_features for name in ("q", "k", "v")}

    def scan_path(self) -> str:
        return self.path

    def project(self, x_BTD: Tensor) -> tuple[Tensor, ...]:
        return x_BTD, self.q(x_BTD), self.k(x_BTD), self.v(x_BTD), self.gate(x_BTD)

    def mix(
        self, projected: tuple[Tensor, ...], state: State | None, context: Context
    ) -> tuple[Tensor, State]:
        """Compute the memory in at least float32: bfloat16 would lose its content."""
        x_BTD, q_BTC, k_BTC, v_BTC, gate_BTC = projected
        named = {"q": q_BTC, "k": k_BTC, "v": v_BTC}
        heads = [filtered(self, name, part_BTC, context) for name, part_BTC in named.items()]
        compute_dtype = torch.promote_types(x_BTD.dtype, torch.float32)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).to(compute_dtype) for part in heads)
        log_input_BTH, log_forget_BTH = self.log_gates(x_BTD)
        starts_BT, valid_BT = document_starts(context), context.valid_BT
        if valid_BT is not None:  # padding is not stored and does not decay the memory
            log_input_BTH = log_input_BTH.masked_fill(~valid_BT[..., None], -math.inf)
            log_forget_BTH = log_forget_BTH.masked_fill(~valid_BT[..., None], 0.0)
            starts_BT = None if starts_BT is None else starts_BT & valid_BT
        state = self.start(x_BTD.shape[0], 0) if state is None else state
        with torch.autocast(x_BTD.device.type, enabled=False):
            y_BTHV, memory_BHKU, scale_BH = mlstm(
                q,
                k,
                v,
                log_input_BTH,
                log_forget_BTH,
                state["memory"].to(compute_dtype),
                state["scale"].to(compute_dtype),
                starts_BT=starts_BT,
                eps=self.eps,
                path=self.path,
            )
        y_BTHV = F.layer_norm(y_BTHV.to(self.norm_C.dtype), (self.value_width,), eps=self.norm_eps)
        y_BTC = y_BTHV.flatten(2) * self.norm_C
        return y_BTC * gate_BTC.sigmoid(), {"memory": memory_BHKU, "scale": scale_BH}

    def log_gates(self, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """Return log i and log f (B, T, H), in at least float32."""
        compute_dtype = torch.promote_types(x_BTD.dtype, torch.float32)
        log_input, forget = (gate(x_BTD).to(compute_dtype) for gate in (self.input_gate, self.forget_gate))
        if self.cap is not None:
            log_input, forget = (self.cap * torch.tanh(x / self.cap) for x in (log_input, forget))
        return log_input, F.logsigmoid(forget)

    def start(self, batch_size: int, max_length: int) -> State:
        shape = (batch_size, self.heads, self.key_width, self.value_width + 1)
        weight = self.out.weight
        # The memory is a multiple of exp(-scale): a scale rounded to bfloat16 would change all of it.
        compute_dtype = torch.promote_types(weight.dtype, torch.float32)
        return {"memory": weight.new_zeros(shape), "scale": weight.new_zeros(shape[:2], dtype=compute_dtype)}

    def flops(self, length: int) -> Flops:
        memory = mlstm_flops(length, self.heads, self.key_width, self.value_width)
        return Flops(linear=linear_flops(self, length), mixer=memory)

    def state_bytes(self, length: int, bytes_per_element: int) -> int:
        memory = self.heads * self.key_width * (self.value_width + 1)
        return memory * bytes_per_element + self.heads * max(bytes_per_element, 4)

    @torch.no_grad()
    def initialise(self, num_branches: int) -> None:
        """Gates that do not depend on the token: little is stored, and heads forget at different rates."""
        for gate in (self.input_gate, self.forget_gate):
            gate.weight.zero_()
        self.input_gate.bias.fill_(-10.0)
        self.forget_gate.bias.copy_(torch.linspace(3.0, 6.0, self.heads))
        if not self.borrowed:
            self.out.weight.mul_(num_branches**-0.5)


Config = MLSTMConfig
make = MLSTM
