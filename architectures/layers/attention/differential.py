"""Differential attention: the difference of two softmaxes, which cancels what both attend to.

Shapes: B batch, T queries, S keys, D d_model, H query heads, G key/value heads, E head_dim, F = 2 E,
L = H / 2 pairs of query heads, P = G / 2 pairs of key/value heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.attention.kv_cache import Cache
from archbench.architectures.layers.attention.multi_head import Attention
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.normalization import RMSNorm

LAMBDA_STD = 0.1
"""Standard deviation of the vectors of lambda at initialisation."""


class DifferentialAttention(Attention):
    """Differential attention (Ye et al. 2024, arXiv 2410.05258), section 2.1.

    Heads 2 i and 2 i + 1 are a pair: each computes attention weights, and their difference, with the second
    times lambda, reads the values of both. Outputs of pairs are normalised and multiplied by 1 - lambda_init.
    """

    def __init__(
        self, d_model: int, config: AttentionConfig, *, layer: int, norm_eps: float = 1e-5, **settings: Any
    ) -> None:
        """``layer`` counts from 0; later layers begin with a larger lambda."""
        super().__init__(d_model, config, norm_eps=norm_eps, **settings)
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * layer)
        self.lambda_q1_E = nn.Parameter(torch.empty(self.head_dim))
        self.lambda_k1_E = nn.Parameter(torch.empty(self.head_dim))
        self.lambda_q2_E = nn.Parameter(torch.empty(self.head_dim))
        self.lambda_k2_E = nn.Parameter(torch.empty(self.head_dim))
        self.pair_norm = RMSNorm(2 * self.head_dim, eps=norm_eps)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        k_BPTF, v_BPTF = self._pairs(x_BTD, context)
        return self._difference(x_BTD, context, k_BPTF, lambda q, k: self.attend_whole(q, k, v_BPTF, context))

    def step(self, x_BTD: Tensor, state: Any, context: Context) -> Tensor:
        (k_BPSF, v_BPSF), key_BS = state.append(self._pairs(x_BTD, context), context)
        return self._difference(
            x_BTD, context, k_BPSF, lambda q, k: self.attend_to(q, k, v_BPSF, key_BS, context)
        )

    def _pairs(self, x_BTD: Tensor, context: Context) -> list[Tensor]:
        """Return the keys and the values (B, P, T, F) of both heads of each pair side by side."""
        return [
            stream_BGTE.unflatten(1, (-1, 2)).transpose(2, 3).flatten(3)
            for stream_BGTE in self.keys_values(x_BTD, context)
        ]

    def _difference(
        self, x_BTD: Tensor, context: Context, k_BPSF: Tensor, attend: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Return the output. ``attend`` is attention of queries (B, L, T, E) to keys (B, P, S, E)."""
        q_BHTE = self.query(x_BTD, context)
        first_BLTF, second_BLTF = (
            attend(q_BHTE[:, i::2], k_BPSE) for i, k_BPSE in enumerate(k_BPSF.chunk(2, dim=-1))
        )
        y_BLTF = first_BLTF - self.lambda_().to(first_BLTF.dtype) * second_BLTF
        y_BTLF = self.pair_norm(y_BLTF.transpose(1, 2)) * (1 - self.lambda_init)
        return self._merged(y_BTLF.transpose(1, 2), x_BTD)

    def lambda_(self) -> Tensor:
        """Return the factor of the second softmax, in at least float32."""
        dtype = torch.promote_types(self.lambda_q1_E.dtype, torch.float32)
        first = (self.lambda_q1_E.to(dtype) * self.lambda_k1_E.to(dtype)).sum().exp()
        second = (self.lambda_q2_E.to(dtype) * self.lambda_k2_E.to(dtype)).sum().exp()
        return first - second + self.lambda_init

    def start(self, batch_size: int, max_length: int) -> Cache:
        return self.make_cache(batch_size, max_length, self.num_kv_heads // 2, self._widths(), self.k.weight)

    def state_bytes(self, length: int, bytes_per_element: int) -> int:
        return self.cache_bytes(length, self.num_kv_heads // 2, self._widths(), bytes_per_element)

    def _widths(self) -> list[int]:
        return [2 * self.head_dim] * 2

    def pair_flops(self, pairs: int) -> int:
        """Scores of width E, and weighted sums of width 2 E, for each head."""
        return 6 * pairs * self.num_heads * self.head_dim

    @torch.no_grad()
    def initialise(self, num_branches: int) -> None:
        super().initialise(num_branches)
        for vector_E in (self.lambda_q1_E, self.lambda_k1_E, self.lambda_q2_E, self.lambda_k2_E):
            vector_E.normal_(0.0, LAMBDA_STD)
