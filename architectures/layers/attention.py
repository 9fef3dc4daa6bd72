"""Softmax attention: multi-head and grouped-query, self and cross, with a key/value cache.

Shapes: B batch, T queries, S keys, D d_model, H query heads, G key/value heads,
E head_dim.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from architectures.backbone import Flops, linear_flops
from architectures.layers.block import Mixer
from architectures.layers.positions import rotate


class Attention(Mixer):
    """Scaled dot-product attention (Vaswani et al. 2017) with grouped key/value heads.

    Query head h reads key/value head ``h * G // H`` (Ainslie et al. 2023, arXiv
    2305.13245). Computed by PyTorch's fused attention.
    """

    def __init__(
        self,
        d_model: int,
        *,
        num_heads: int,
        num_kv_heads: int,
        causal: bool,
        bias: bool = False,
        rope_base: float | None = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim = d_model // num_heads
        self.causal = causal
        self.rope_base = rope_base
        self.q = nn.Linear(d_model, num_heads * self.head_dim, bias=bias)
        self.k = nn.Linear(d_model, num_kv_heads * self.head_dim, bias=bias)
        self.v = nn.Linear(d_model, num_kv_heads * self.head_dim, bias=bias)
        self.out = nn.Linear(num_heads * self.head_dim, d_model, bias=bias)

    def forward(
        self,
        x_BTD: Tensor,
        valid_BT: Tensor | None = None,
        *,
        bias_BHTS: Tensor | None = None,
    ) -> Tensor:
        """Self-attention over the sequence."""
        positions_T = torch.arange(x_BTD.shape[1], device=x_BTD.device)
        q_BHTE = self._query(x_BTD, positions_T)
        k_BGSE, v_BGSE = self.keys_values(x_BTD, positions_T)
        return self.attend(q_BHTE, k_BGSE, v_BGSE, valid_BS=valid_BT, bias_BHTS=bias_BHTS)

    def cross(self, x_BTD: Tensor, k_BGSE: Tensor, v_BGSE: Tensor, valid_BS: Tensor | None) -> Tensor:
        """Attention to keys and values of another sequence, made by ``keys_values``."""
        return self.attend(self._heads(self.q(x_BTD), self.num_heads), k_BGSE, v_BGSE, valid_BS=valid_BS)

    def attend(
        self,
        q_BHTE: Tensor,
        k_BGSE: Tensor,
        v_BGSE: Tensor,
        *,
        valid_BS: Tensor | None = None,
        bias_BHTS: Tensor | None = None,
        first_query: int = 0,
    ) -> Tensor:
        """softmax(q k^T / sqrt(E) + bias) v, then the output projection.

        A mask tensor is made only where one is needed: without padding or bias,
        a whole causal sequence and a single new token need none.
        """
        T, S = q_BHTE.shape[2], k_BGSE.shape[2]
        plain_causal = self.causal and first_query == 0 and T == S
        last_token = T == 1 and first_query + 1 == S
        mask = None
        if (
            valid_BS is not None
            or bias_BHTS is not None
            or not (plain_causal or last_token or not self.causal)
        ):
            mask = _mask(T, S, self.causal, first_query, valid_BS, q_BHTE.device)
            if bias_BHTS is not None:
                mask = bias_BHTS.to(q_BHTE.dtype).masked_fill(~mask, -math.inf)
        y_BHTE = F.scaled_dot_product_attention(
            q_BHTE,
            k_BGSE,
            v_BGSE,
            attn_mask=mask,
            is_causal=mask is None and plain_causal,
            enable_gqa=self.num_heads != self.num_kv_heads,
        )
        return self.out(y_BHTE.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)

    def _query(self, x_BTD: Tensor, positions_T: Tensor) -> Tensor:
        q_BHTE = self._heads(self.q(x_BTD), self.num_heads)
        return q_BHTE if self.rope_base is None else rotate(q_BHTE, positions_T, self.rope_base)

    def keys_values(self, x_BSD: Tensor, positions_S: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, G, S, E) of a sequence; keys carry their positions."""
        k_BGSE = self._heads(self.k(x_BSD), self.num_kv_heads)
        if self.rope_base is not None:
            k_BGSE = rotate(k_BGSE, positions_S, self.rope_base)
        return k_BGSE, self._heads(self.v(x_BSD), self.num_kv_heads)

    def start(self, batch_size: int, max_length: int) -> dict[str, Any]:
        shape = (batch_size, self.num_kv_heads, max_length, self.head_dim)
        empty = self.k.weight.new_zeros(shape)
        return {"k": empty, "v": empty.clone()}

    def step(
        self, x_BTD: Tensor, state: dict[str, Any], position: int, *, bias_BHTS: Tensor | None = None
    ) -> Tensor:
        end = position + x_BTD.shape[1]
        if end > state["k"].shape[2]:
            raise ValueError(f"the cache has room for {state['k'].shape[2]} tokens, not for {end}")
        positions_T = torch.arange(position, end, device=x_BTD.device)
        k_BGTE, v_BGTE = self.keys_values(x_BTD, positions_T)
        state["k"][:, :, position:end] = k_BGTE
        state["v"][:, :, position:end] = v_BGTE
        return self.attend(
            self._query(x_BTD, positions_T),
            state["k"][:, :, :end],
            state["v"][:, :, :end],
            bias_BHTS=bias_BHTS,
            first_query=position,
        )

    def flops(self, length: int) -> Flops:
        pairs = length * (length + 1) // 2 if self.causal else length * length
        return Flops(linear=linear_flops(self, length), attention=self.pair_flops(pairs))

    def pair_flops(self, pairs: int) -> int:
        """FLOPs of scores and weighted sums over that many (query, key) pairs."""
        return 4 * pairs * self.num_heads * self.head_dim

    def state_bytes(self, length: int, bytes_per_element: int) -> int:
        return 2 * length * self.num_kv_heads * self.head_dim * bytes_per_element

    @torch.no_grad()
    def initialise(self, num_layers: int) -> None:
        # Two residual branches a layer; the sum of all should not grow with depth (GPT-2).
        self.out.weight.mul_((2 * num_layers) ** -0.5)


def _mask(
    T: int, S: int, causal: bool, first_query: int, valid_BS: Tensor | None, device: torch.device
) -> Tensor:
    """True where a query may look, broadcastable to (B, H, T, S)."""
    mask = torch.ones(T, S, dtype=torch.bool, device=device)
    if causal:
        mask = mask.tril(first_query)
    return mask if valid_BS is None else mask & valid_BS[:, None, None, :]


def validate_heads(num_heads: int, num_kv_heads: int) -> None:
    """Raises ValueError for head counts that do not divide."""
    if num_heads < 1:
        raise ValueError(f"num_heads={num_heads} must be at least 1")
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(f"num_heads={num_heads} must be a multiple of num_kv_heads={num_kv_heads}")
