"""Multi-head latent attention: keys and values of all heads are projected from one narrow latent.

DeepSeek-V2 (arXiv 2405.04434), section 2.1: the cache keeps the latent and one
rotated key for each token, not the keys and values of every head.

Shapes: B batch, T queries, S keys, D d_model, H heads, N width of a head without
position, P rotated width, V width of values, R width of the latent.
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
from archbench.architectures.layers.positions import PositionsConfig, Rotary

LATENT_EPS = 1e-6
"""Added to the mean square in the norms of the latents, independent of other norms (DeepSeek)."""


class LatentAttention(SoftmaxAttention):
    """Heads read latents. Two ways to decode give the same: naive and absorbed.

    Scores are (q_nope W_UK) c + q_rope k_rope, so the key projection can move to
    the queries and the value projection to the outputs; then a step never makes
    keys and values of past tokens again.
    """

    def __init__(
        self,
        d_model: int,
        config: AttentionConfig,
        *,
        causal: bool,
        positions: PositionsConfig,
        positional: bool,
    ) -> None:
        super().__init__(config)
        self.causal, self.window, self.positional = causal, None, positional
        self.latent, self.num_heads = config.latent, config.num_heads
        latent, heads = self.latent, config.num_heads
        assert latent.kv_rank is not None
        self.rotary = None
        if positional and positions.kind == "rope":
            self.rotary = Rotary(
                dim=latent.rope_dim,
                base=positions.base,
                interleaved=positions.interleaved,
                scaling=positions.scaling,
            )
        q_width = heads * (latent.nope_dim + latent.rope_dim)
        if latent.q_rank is None:
            self.q = nn.Linear(d_model, q_width, bias=False)
        else:
            self.q_down = nn.Linear(d_model, latent.q_rank, bias=config.bias)
            self.q_norm = nn.RMSNorm(latent.q_rank, eps=LATENT_EPS)
            self.q = nn.Linear(latent.q_rank, q_width, bias=False)
        self.kv_down = nn.Linear(d_model, latent.kv_rank + latent.rope_dim, bias=config.bias)
        self.kv_norm = nn.RMSNorm(latent.kv_rank, eps=LATENT_EPS)
        self.kv = nn.Linear(latent.kv_rank, heads * (latent.nope_dim + latent.v_dim), bias=False)
        self.out = nn.Linear(heads * latent.v_dim, d_model, bias=config.out_bias)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        q_BHTE = self._queries(x_BTD, context)
        k_BHTE, v_BHTV = self._keys_values(*self._latents(x_BTD, context))
        y_BHTV = self.attend_whole(q_BHTE, k_BHTE, v_BHTV, context)
        return self.out(y_BHTV.transpose(1, 2).flatten(2))

    def step(self, x_BTD: Tensor, state: Any, context: Context) -> Tensor:
        q_BHTE = self._queries(x_BTD, context)
        (c_B1SR, rope_B1SP), key_BS = state.append(list(self._latents(x_BTD, context)), context)
        # For multiple tokens, keys and values are cheaper, and narrow enough for every kernel.
        if self.latent.absorbed and x_BTD.shape[1] == 1:
            y_BHTV = self._absorbed(q_BHTE, c_B1SR, rope_B1SP, key_BS, context)
        else:
            y_BHTV = self.attend_to(q_BHTE, *self._keys_values(c_B1SR, rope_B1SP), key_BS, context)
        return self.out(y_BHTV.transpose(1, 2).flatten(2))

    def _queries(self, x_BTD: Tensor, context: Context) -> Tensor:
        """Queries (B, H, T, N + P), their last P dimensions rotated."""
        if self.latent.q_rank is not None:
            x_BTD = self.q_norm(self.q_down(x_BTD))
        q_BTC = filtered(self, "q", self.q(x_BTD), context)
        q_BHTE = q_BTC.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        nope, rope = q_BHTE.split([self.latent.nope_dim, self.latent.rope_dim], dim=-1)
        return torch.cat([nope, self._rotated(rope, context)], dim=-1)

    @property
    def canon_widths(self) -> dict[str, int]:
        """Return the widths of queries and of the latent, from which keys and values are projected later."""
        return {"q": self.q.out_features, "kv_down": self.kv_down.out_features}

    def _latents(self, x_BTD: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Return the streams that the cache keeps of each token: the normed latent (B, 1, T, R), the turned
        key (B, 1, T, P)."""
        kv_BTC = filtered(self, "kv_down", self.kv_down(x_BTD), context)
        c_B1TR, rope_B1TP = kv_BTC[:, None].split(
            [self.kv_norm.normalized_shape[0], self.latent.rope_dim], dim=-1
        )
        return self.kv_norm(c_B1TR), self._rotated(rope_B1TP, context)

    def _rotated(self, x: Tensor, context: Context) -> Tensor:
        if self.rotary is None:
            return x
        return self.rotary.rotate(x, self.rotary.tables_in(context))

    def _keys_values(self, c_B1SR: Tensor, rope_B1SP: Tensor) -> tuple[Tensor, Tensor]:
        """Keys (B, H, S, N + P) and values (B, H, S, V) of every head."""
        kv_BHSE = self.kv(c_B1SR[:, 0]).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        nope, v_BHSV = kv_BHSE.split([self.latent.nope_dim, self.latent.v_dim], dim=-1)
        rope = rope_B1SP.expand(-1, self.num_heads, -1, -1)
        return torch.cat([nope, rope], dim=-1), v_BHSV

    def _absorbed(
        self, q_BHTE: Tensor, c_B1SR: Tensor, rope_B1SP: Tensor, key_BS: Tensor, context: Context
    ) -> Tensor:
        """Attention with the latents as keys and as values, one head of each for all queries."""
        latent = self.latent
        up_HER = self.kv.weight.unflatten(0, (self.num_heads, -1))
        key_HNR, value_HVR = up_HER.split([latent.nope_dim, latent.v_dim], dim=1)
        nope, rope = q_BHTE.split([latent.nope_dim, latent.rope_dim], dim=-1)
        q_BHTR = torch.einsum("bhtn,hnr->bhtr", nope, key_HNR)
        y_BHTR = self.attend_to(
            torch.cat([q_BHTR, rope], dim=-1),
            torch.cat([c_B1SR, rope_B1SP], dim=-1),
            c_B1SR,
            key_BS,
            context,
        )
        return torch.einsum("bhtr,hvr->bhtv", y_BHTR, value_HVR)

    def narrowest(self) -> int:
        return min(self.latent.nope_dim + self.latent.rope_dim, self.latent.v_dim)

    def scale(self) -> float:
        """1/sqrt of the width of a head's queries: the absorbed ones are wider, and scaled the same."""
        width = self.latent.nope_dim + self.latent.rope_dim
        return width**-0.5 if self.config.scale is None else self.config.scale

    def start(self, batch_size: int, max_length: int) -> Cache:
        return self.make_cache(batch_size, max_length, 1, self._widths(), self.out.weight)

    def state_bytes(self, length: int, bytes_per_element: int) -> int:
        return self.cache_bytes(length, 1, self._widths(), bytes_per_element)

    def _widths(self) -> list[int]:
        assert self.latent.kv_rank is not None
        return [self.latent.kv_rank, self.latent.rope_dim]

    def flops(self, length: int) -> Flops:
        latent = self.latent
        width = latent.nope_dim + latent.rope_dim + latent.v_dim
        pairs = 2 * self.pairs(length) * self.num_heads * width
        return Flops(linear=linear_flops(self, length), attention=pairs)

    def step_flops(self, length: int) -> Flops:
        latent, keys = self.latent, length + 1
        assert latent.kv_rank is not None
        linear = linear_flops(self, 1)  # absorbed, the up-projection works on queries and outputs instead
        if latent.absorbed:
            width = 2 * latent.kv_rank + latent.rope_dim
        else:
            linear += linear_flops(self.kv, length)  # keys and values of all past tokens, recomputed
            width = latent.nope_dim + latent.rope_dim + latent.v_dim
        return Flops(linear=linear, attention=2 * keys * self.num_heads * width)

    @torch.no_grad()
    def initialise(self, num_branches: int) -> None:
        self.out.weight.mul_(num_branches**-0.5)
