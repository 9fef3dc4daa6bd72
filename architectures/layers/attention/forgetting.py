"""Forgetting attention: softmax attention whose scores decay by a gate of each token in between.

Shapes: B batch, T queries, S keys, D d_model, H query heads, G key/value heads, R query heads of a key/value
head, E head_dim, C columns, P parts of a number.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.attention.multi_head import Attention
from archbench.architectures.layers.context import Context

WIDTH_MULTIPLE = 4
"""Heads are widened to a multiple of it, as PyTorch's backward pass on a CPU is slow at other widths."""
PARTS = {torch.bfloat16: 3, torch.float16: 3}
"""Numbers of these dtypes whose sum has the precision of float32."""


class ForgettingAttention(Attention):
    """Attention with a forget gate (Lin et al. 2025, arXiv 2503.02130).

    A token has a gate ``f = sigmoid(linear(x))`` for each head. Log f, which is negative, of each token after
    a key up to the query is added to the score. With f = 1 it is attention.
    """

    def __init__(self, d_model: int, config: AttentionConfig, *, causal: bool, **settings: Any) -> None:
        super().__init__(d_model, config, causal=causal, **settings)
        if not causal:
            raise ValueError(
                "attention.forget_gate=true weights a key by the tokens up to a later query: it goes "
                "with causal models only, set it to false"
            )
        self.forget = nn.Linear(d_model, self.num_heads)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        q_BHTE = self.query(x_BTD, context)
        k_BGTE, v_BGTE = self.keys_values(x_BTD, context)
        total_BHT = self.log_gate(x_BTD).cumsum(2)
        if self.config.kernel == "auto" and self.config.softcap is None:
            streams = in_columns(q_BHTE, k_BGTE, v_BGTE, total_BHT, self.scale())
            y_BHTE = self.attend_whole(*streams, context)[..., : self.head_dim]
        else:
            decay_BHTS = total_BHT[..., None] - total_BHT[..., None, :]
            y_BHTE = self.attend_whole(q_BHTE, k_BGTE, v_BGTE, context, bias=decay_BHTS)
        return self._merged(y_BHTE, x_BTD)

    def log_gate(self, x_BTD: Tensor) -> Tensor:
        """Return log f of each token, (B, H, T), in at least float32: it is summed over the sequence."""
        logit_BHT = self.forget(x_BTD).transpose(1, 2)
        return F.logsigmoid(logit_BHT.to(torch.promote_types(logit_BHT.dtype, torch.float32)))

    def start(self, batch_size: int, max_length: int) -> Any:
        """Return caches of keys, values and sums of log f up to each token, and the last of these sums."""
        weight = self.forget.weight
        total_BH = weight.new_zeros(
            batch_size, self.num_heads, dtype=torch.promote_types(weight.dtype, torch.float32)
        )
        return {
            "keys": super().start(batch_size, max_length),
            "totals": self.make_cache(batch_size, max_length, self.num_heads, [1], total_BH),
            "total": total_BH,
        }

    def step(self, x_BTD: Tensor, state: Any, context: Context) -> Tensor:
        q_BHTE = self.query(x_BTD, context)
        (k_BGSE, v_BGSE), key_BS = state["keys"].append(list(self.keys_values(x_BTD, context)), context)
        log_BHT = self.log_gate(x_BTD)
        if context.valid_BT is not None:
            log_BHT = log_BHT * context.valid_BT[:, None]
        total_BHT = state["total"][..., None] + log_BHT.cumsum(2)
        state["total"].copy_(total_BHT[..., -1])
        (total_BHS1,), _ = state["totals"].append([total_BHT[..., None]], context)
        decay_BHTS = total_BHT[..., None] - total_BHS1.transpose(2, 3)
        return self._merged(self.attend_to(q_BHTE, k_BGSE, v_BGSE, key_BS, context, bias=decay_BHTS), x_BTD)

    def state_bytes(self, length: int, bytes_per_element: int) -> int:
        """All sums in at least float32."""
        bytes_per_total = max(bytes_per_element, 4)
        totals = self.cache_bytes(length, self.num_heads, [1], bytes_per_total)
        last = self.num_heads * bytes_per_total
        return super().state_bytes(length, bytes_per_element) + totals + last


def in_columns(
    q_BHTE: Tensor, k_BGTE: Tensor, v_BGTE: Tensor, total_BHT: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values for which plain attention adds ``total[t] - total[s]`` to the scores.

    The difference becomes a product of additional columns, ``total[t] * 1 + 1 * -total[s]``, so that every
    kernel of attention has it and its gradient without a tensor of all pairs. A key has a column for each of
    the R query heads that read it. Numbers of 16 bits are sums of parts. The columns come first, where
    kernels subtract the totals before they add the rest of the score.

    The values get as many zeros, as fused kernels need equal widths.
    """
    dtype, device = q_BHTE.dtype, q_BHTE.device
    if torch.is_autocast_enabled(device.type) and dtype == torch.float32:
        dtype = torch.get_autocast_dtype(device.type)
    (B, H, T, E), G, P = q_BHTE.shape, k_BGTE.shape[1], PARTS.get(dtype, 1)
    R = H // G
    one = 2.0 ** round(-math.log2(scale))  # exact in every dtype; the scale of all scores makes it one
    part_BHTP = split(total_BHT / (one * scale), dtype, P)
    # A key has the parts of head r of its group in columns r P + p, which head r multiplies by one.
    part_BGTC = part_BHTP.unflatten(1, (G, R)).transpose(2, 3).flatten(3)
    select_RC = torch.eye(R, dtype=dtype, device=device).repeat_interleave(P, dim=1) * one
    padding = (0, -(E + P + R * P) % WIDTH_MULTIPLE)
    select_BHTC = F.pad(select_RC, padding).repeat(G, 1)[:, None].expand(B, H, T, -1)
    ones_BGTP = part_BHTP.new_full((B, G, T, P), one)
    q_BHTE = torch.cat([part_BHTP, select_BHTC, q_BHTE.to(dtype)], dim=-1)
    k_BGTE = torch.cat([ones_BGTP, F.pad(-part_BGTC, padding), k_BGTE.to(dtype)], dim=-1)
    return q_BHTE, k_BGTE, F.pad(v_BGTE.to(dtype), (0, q_BHTE.shape[-1] - E))


def split(x: Tensor, dtype: torch.dtype, parts: int) -> Tensor:
    """Return numbers of a dtype, along a new last dimension, whose sum is x to the precision of the last."""
    rounded = [x.to(dtype)]
    for _ in range(parts - 1):
        x = x - rounded[-1].to(x.dtype)
        rounded.append(x.to(dtype))
    return torch.stack(rounded, dim=-1)
