"""Softmax attention: multi-head, grouped-query and multi-query, self and cross, global and local.

Shapes: B batch, T queries, S keys, D d_model, H query heads, G key/value heads,
E head_dim.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from archbench.architectures.backbone import Flops, linear_flops
from archbench.architectures.layers.attention.base import SoftmaxAttention
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.attention.kv_cache import Cache
from archbench.architectures.layers.canon import filtered
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.normalization import make_norm
from archbench.architectures.layers.positions import (
    PositionsConfig,
    RelativePositionBias,
    Rotary,
    RotaryScaling,
    relative_bias,
)


class Attention(SoftmaxAttention):
    """Scaled dot-product attention (Vaswani et al. 2017) with grouped key/value heads.

    Query head h reads key/value head ``h * G // H`` (Ainslie et al. 2023, arXiv
    2305.13245).
    """

    decode_kernel = "decode attention"

    def __init__(
        self,
        d_model: int,
        config: AttentionConfig,
        *,
        causal: bool,
        window: int | None = None,
        positions: PositionsConfig | None = None,
        positional: bool = True,
        norm: str = "rmsnorm",
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__(config)
        self.causal, self.window = causal, window
        self.positional = positional and positions is not None
        self.num_heads, self.num_kv_heads = config.num_heads, config.kv_heads
        self.head_dim = head_dim(d_model, config)
        self.rotary = rotary(positions, self.head_dim, local=window is not None) if self.positional else None
        q_width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        self.q = nn.Linear(d_model, q_width, bias=config.bias)
        self.k = nn.Linear(d_model, kv_width, bias=config.bias)
        self.v = nn.Linear(d_model, kv_width, bias=config.bias)
        self.gate = nn.Linear(d_model, q_width, bias=config.bias) if config.output_gate else None
        self.out = nn.Linear(q_width, d_model, bias=config.out_bias)
        if config.qk_norm != "none":
            full = config.qk_norm == "full"
            self.q_norm = make_norm(norm, q_width if full else self.head_dim, norm_eps)
            self.k_norm = make_norm(norm, kv_width if full else self.head_dim, norm_eps)
        if self.positional and positions is not None and positions.by_layer:
            self.own_bias = relative_bias(positions, self.num_heads, bidirectional=not causal)
        self.carries = "attention values" if config.value_residual else ""
        self.value_factor_2: nn.Parameter | None = None
        """Factors of the values of the first layer and of this one, where they are added."""
        if config.sinks:
            self.sink_H = nn.Parameter(torch.zeros(self.num_heads))

    def place(self, index: int, count: int) -> None:
        """Add the value residual, where it is configured and this is not the first layer."""
        if self.config.value_residual and index > 0:
            self.value_factor_2 = nn.Parameter(torch.full((2,), 0.5))
            self.value_factor_2.no_weight_decay = True  # type: ignore[attr-defined]

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        q_BHTE = self.query(x_BTD, context)
        k_BGTE, v_BGTE = self.keys_values(x_BTD, context)
        return self._merged(self.attend_whole(q_BHTE, k_BGTE, v_BGTE, context), x_BTD)

    def step(self, x_BTD: Tensor, state: Any, context: Context) -> Tensor:
        q_BHTE = self.query(x_BTD, context)
        y_BHTE = self.attend_cached(q_BHTE, list(self.keys_values(x_BTD, context)), state, context)
        return self._merged(y_BHTE, x_BTD)

    def query(self, x_BTD: Tensor, context: Context) -> Tensor:
        """Return queries (B, H, T, E), rotated to their positions."""
        q_BHTE = self._filtered("q", self._project(x_BTD, self.q, "q_norm"), context)
        return self._rotated(q_BHTE, context)

    def keys_values(self, x_BTD: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Return keys and values (B, G, T, E); keys are rotated to their positions."""
        k_BGTE = self._filtered("k", self._project(x_BTD, self.k, "k_norm"), context)
        return self._rotated(k_BGTE, context), self._heads(self._values(x_BTD, context))

    def _values(self, x_BTD: Tensor, context: Context) -> Tensor:
        v_BTC = filtered(self, "v", self.v(x_BTD), context)
        if not self.carries:
            return v_BTC
        first_BTC = context.carried.setdefault(self.carries, v_BTC)
        if self.value_factor_2 is None:
            return v_BTC
        first_factor, factor = self.value_factor_2.to(v_BTC.dtype)
        return first_factor * first_BTC + factor * v_BTC

    @property
    def canon_widths(self) -> dict[str, int]:
        return {name: getattr(self, name).out_features for name in ("q", "k", "v")}

    def _filtered(self, name: str, x_BHTE: Tensor, context: Context) -> Tensor:
        """Return queries or keys after their canon layer: normed, and not rotated yet, as the authors do."""
        if name not in self.canon:
            return x_BHTE
        return self._heads(filtered(self, name, x_BHTE.transpose(1, 2).flatten(2), context))

    def _project(self, x_BTD: Tensor, linear: nn.Linear, norm: str) -> Tensor:
        x = linear(x_BTD)
        if self.config.qk_norm == "full":
            x = getattr(self, norm)(x)
        x = self._heads(x)
        return getattr(self, norm)(x) if self.config.qk_norm == "head" else x

    def _merged(self, y_BHTE: Tensor, x_BTD: Tensor) -> Tensor:
        """Return the output of all heads together, gated by the input."""
        y_BTC = y_BHTE.transpose(1, 2).flatten(2)
        return self.out(y_BTC if self.gate is None else y_BTC * self.gate(x_BTD).sigmoid())

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _rotated(self, x_BHTE: Tensor, context: Context) -> Tensor:
        if self.rotary is None:
            return x_BHTE
        return self.rotary.rotate(x_BHTE, self.rotary.tables_in(context))

    def start(self, batch_size: int, max_length: int) -> Cache:
        widths = [self.head_dim, self.head_dim]
        return self.make_cache(batch_size, max_length, self.num_kv_heads, widths, self.k.weight)

    def state_bytes(self, length: int, bytes_per_element: int) -> int:
        return self.cache_bytes(length, self.num_kv_heads, [self.head_dim] * 2, bytes_per_element)

    def flops(self, length: int) -> Flops:
        return Flops(linear=linear_flops(self, length), attention=self.pair_flops(self.pairs(length)))

    def pair_flops(self, pairs: int) -> int:
        """FLOPs of scores and weighted sums over that many (query, key) pairs."""
        return 4 * pairs * self.num_heads * self.head_dim

    @torch.no_grad()
    def initialise(self, num_branches: int) -> None:
        # The sum of all residual branches should not grow with depth (GPT-2).
        self.out.weight.mul_(num_branches**-0.5)
        if isinstance(self.own_bias, RelativePositionBias):
            nn.init.normal_(self.own_bias.table.weight, 0.0, self.q.in_features**-0.5)


class CrossAttention(Attention):
    """Attention of a decoder to the encoder's output, without positions; only padding is masked."""

    decode_kernel = "decode cross-attention"

    def __init__(self, d_model: int, config: AttentionConfig, **norms: Any) -> None:
        super().__init__(d_model, config, causal=False, positional=False, **norms)

    def read(self, source_BSD: Tensor, valid_BS: Tensor | None) -> dict[str, Tensor | None]:
        """Return keys and values of the source, computed once for a full target and never extended."""
        k_BGSE = self._project(source_BSD, self.k, "k_norm")
        return {"k": k_BGSE, "v": self._heads(self.v(source_BSD)), "valid": valid_BS}

    def cross(self, x_BTD: Tensor, source: dict[str, Tensor | None]) -> Tensor:
        """Return the output of cross-attention for the target."""
        k_BGSE, v_BGSE, valid_BS = source["k"], source["v"], source["valid"]
        assert k_BGSE is not None
        assert v_BGSE is not None
        mask = None if valid_BS is None else valid_BS[:, None, None, :]
        q_BHTE = self._project(x_BTD, self.q, "q_norm")
        return self._merged(self._attend(q_BHTE, k_BGSE, v_BGSE, mask=mask), x_BTD)

    def cross_flops(self, length: int, source_length: int) -> Flops:
        """Queries and outputs for each target token, keys and values for each source token."""
        layers = [layer for layer in (self.q, self.gate, self.out) if layer is not None]
        query_flops = sum(linear_flops(layer, length) for layer in layers)
        source_flops = linear_flops(self.k, source_length) + linear_flops(self.v, source_length)
        return Flops(linear=query_flops + source_flops, attention=self.pair_flops(length * source_length))

    def source_bytes(self, source_length: int, bytes_per_element: int) -> int:
        """Bytes of the keys and values of the source."""
        return 2 * source_length * self.num_kv_heads * self.head_dim * bytes_per_element


def head_dim(d_model: int, config: AttentionConfig) -> int:
    """Width of a head. Raises ValueError where d_model does not divide."""
    if config.head_dim is None and d_model % config.num_heads:
        raise ValueError(
            f"d_model={d_model} must be a multiple of attention.num_heads={config.num_heads}, "
            "or attention.head_dim given"
        )
    return config.head_dim or d_model // config.num_heads


def rotary(positions: PositionsConfig | None, dim: int, *, local: bool) -> Rotary | None:
    """The rotary embedding of a layer; None where the model has other positions."""
    if positions is None or positions.kind != "rope":
        return None
    rotated = int(dim * positions.fraction)
    if rotated % 2:
        raise ValueError(
            f"positions.fraction={positions.fraction} of heads of {dim} rotates {rotated} dimensions: "
            "they turn in pairs, make it even"
        )
    base = positions.local_base if local and positions.local_base else positions.base
    scaling = positions.scaling if positions.scale_local or not local else RotaryScaling()
    return Rotary(dim=rotated, base=base, interleaved=positions.interleaved, scaling=scaling)
