"""Softmax attention itself: a plain reference that defines it, and the fused paths.

Shapes: B batch, T queries, S keys, H query heads, G key/value heads, E width of
queries and keys, F width of values.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from archbench.architectures import fast_paths
from archbench.architectures.fast_paths import path

KERNELS = ("auto", "reference", "sdpa", "flex")
FLEX_WIDTH = 16
"""Narrowest heads that FlexAttention compiles for a GPU."""
Once = Callable[[Callable[[], Any]], Any]
"""Calls a function once for all layers of a batch, and returns the cached result."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Settings of attention scores, without the mask."""

    scale: float
    """Scores are q k^T times this."""
    softcap: float | None = None
    """Scores become c tanh(scores / c), before bias and mask (Gemma 2)."""
    dropout: float = 0.0
    """Share of the attention weights set to zero in training."""


def attention_mask(
    query_BT: Tensor, key_BS: Tensor, *, causal: bool, window: int | None, empty: int | None = None
) -> Tensor:
    """True where a query may attend, (B, 1, T, S), by position only.

    A causal window of W contains the query itself and the W - 1 keys before it; a
    window on both sides contains keys at most W // 2 away.
    """
    ahead_BTS = key_BS[:, None, :] - query_BT[:, :, None]
    mask_BTS = torch.ones_like(ahead_BTS, dtype=torch.bool)
    if causal:
        mask_BTS = ahead_BTS <= 0
        if window is not None:
            mask_BTS = mask_BTS & (ahead_BTS > -window)
    elif window is not None:
        mask_BTS = ahead_BTS.abs() <= window // 2
    if empty is not None:
        mask_BTS = mask_BTS & (key_BS != empty)[:, None, :]
    return mask_BTS[:, None]


def attend(
    q_BHTE: Tensor,
    k_BGSE: Tensor,
    v_BGSF: Tensor,
    scores: Scores,
    *,
    kernel: str,
    causal: bool = False,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    sink_H: Tensor | None = None,
    once: Once | None = None,
) -> Tensor:
    """The weighted sums of the values, (B, H, T, F).

    Args:
        kernel: ``reference``, ``sdpa`` (PyTorch's, or plain products where it has none), ``flex``, or ``cpp``
            (the C++ kernel where it is faster, else one of the first two).
        causal: the plain causal mask over a full sequence; then ``mask`` and ``bias`` are None.
        mask: True where a query may attend, broadcastable to (B, H, T, S). A query without
            keys gets zeros.
        bias: added to the scores, broadcastable to (B, H, T, S).
        sink_H: a score for each head that is part of the softmax, without a value.
        once: caches tensors that depend only on the mask, for all layers with the same
            mask; None disables the cache.
    """
    if kernel == "flex":
        return _flex(q_BHTE, k_BGSE, v_BGSF, scores, causal, mask, bias, once)
    if kernel == "cpp":
        streams = (q_BHTE, k_BGSE, v_BGSF)
        scale, cap = scores.scale, scores.softcap
        blockwise = fast_paths.kernel("attention")
        y_BHTF = blockwise(*streams, scale=scale, softcap=cap, causal=causal, mask=mask, bias=bias)
        if y_BHTF is not None:
            return y_BHTF
        kernel = "sdpa" if scores.softcap is None else "reference"
    if kernel == "reference":
        if causal:
            mask = torch.ones(q_BHTE.shape[2], k_BGSE.shape[2], dtype=torch.bool, device=q_BHTE.device).tril()
        return reference(q_BHTE, k_BGSE, v_BGSF, scores, mask, bias, sink_H)
    if sink_H is not None:
        return _with_sink(q_BHTE, k_BGSE, v_BGSF, scores, causal, mask, bias, sink_H)
    if bias is not None:
        bias = bias.to(q_BHTE.dtype)
        if _is_bias_trained_on_cpu(q_BHTE, k_BGSE, scores, mask, bias):
            bias = bias if mask is None else bias.masked_fill(~mask, -math.inf)
            score_BHTS = ((scores.scale * q_BHTE) @ k_BGSE.transpose(-2, -1)).add_(bias)
            return score_BHTS.softmax(-1) @ v_BGSF
        mask = bias if mask is None else bias.masked_fill(~mask, -math.inf)
    if (extra := v_BGSF.shape[-1] - q_BHTE.shape[-1]) > 0 and q_BHTE.shape[2] > 1:
        q_BHTE, k_BGSE = (F.pad(x, (0, extra)) for x in (q_BHTE, k_BGSE))  # fused kernels need equal widths
    plain = mask is None and q_BHTE.shape[2] == k_BGSE.shape[2] and q_BHTE.shape[2] > 1
    with contextlib.nullcontext() if plain else without_cudnn(q_BHTE):
        return F.scaled_dot_product_attention(
            q_BHTE,
            k_BGSE,
            v_BGSF,
            attn_mask=mask,
            dropout_p=scores.dropout,
            is_causal=causal,
            scale=scores.scale,
            enable_gqa=q_BHTE.shape[1] != k_BGSE.shape[1],
        )


def without_cudnn(like: Tensor) -> contextlib.AbstractContextManager[None]:
    """Return a context in which PyTorch's attention on a GPU passes over cuDNN; elsewhere one without effect.

    cuDNN, which comes first on Hopper, builds a plan for every new shape, half a second each: in decoding, S
    grows with every token, and unpadded documents are of many lengths. With a mask, its gradient of q can be
    NaN (pytorch issue 196678).
    """
    if not like.is_cuda:
        return contextlib.nullcontext()
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


def reference(
    q_BHTE: Tensor,
    k_BGSE: Tensor,
    v_BGSF: Tensor,
    scores: Scores,
    mask: Tensor | None,
    bias: Tensor | None,
    sink_H: Tensor | None,
) -> Tensor:
    """Compute attention by its definition, operation by operation, in at least float32."""
    compute_dtype = torch.promote_types(q_BHTE.dtype, torch.float32)
    with torch.autocast(q_BHTE.device.type, enabled=False):
        repeats = q_BHTE.shape[1] // k_BGSE.shape[1]
        k_BHSE, v_BHSF = (x.to(compute_dtype).repeat_interleave(repeats, dim=1) for x in (k_BGSE, v_BGSF))
        score_BHTS = q_BHTE.to(compute_dtype) @ k_BHSE.transpose(-2, -1) * scores.scale
        if scores.softcap is not None:
            score_BHTS = scores.softcap * torch.tanh(score_BHTS / scores.softcap)
        if bias is not None:
            score_BHTS = score_BHTS + bias
        if mask is not None:
            score_BHTS = score_BHTS.masked_fill(~mask, torch.finfo(compute_dtype).min)
        if sink_H is not None:
            sink_BHT1 = sink_H.to(compute_dtype)[:, None, None].expand(*score_BHTS.shape[:3], 1)
            score_BHTS = torch.cat([score_BHTS, sink_BHT1], dim=-1)
        weight_BHTS = score_BHTS.softmax(-1)[..., : k_BHSE.shape[2]]
        if mask is not None:
            weight_BHTS = weight_BHTS.masked_fill(~mask, 0.0)
        weight_BHTS = F.dropout(weight_BHTS, scores.dropout)
        return (weight_BHTS @ v_BHSF).to(q_BHTE.dtype)


def _is_bias_trained_on_cpu(
    q_BHTE: Tensor, k_BGSE: Tensor, scores: Scores, mask: Tensor | None, bias: Tensor
) -> bool:
    """Return True for plain products: no fused kernel of PyTorch trains a bias on a CPU.

    PyTorch's alternative supports queries without keys, at the cost of more passes over all scores. Where
    there are none, plain products are faster. ``device.kernels=torch`` does not use them, nor do other
    devices.
    """
    if q_BHTE.dtype != torch.float32 or path(q_BHTE, k_BGSE, bias) == "torch":
        return False
    if not bias.requires_grad or scores.dropout or q_BHTE.shape[1] != k_BGSE.shape[1]:
        return False
    return mask is None or bool(mask.any(-1).all())


def _with_sink(
    q_BHTE: Tensor,
    k_BGSE: Tensor,
    v_BGSF: Tensor,
    scores: Scores,
    causal: bool,
    mask: Tensor | None,
    bias: Tensor | None,
    sink_H: Tensor,
) -> Tensor:
    """Fused attention with one more key of zeros, which has the sink as its bias and zero as its value."""
    T, S = q_BHTE.shape[2], k_BGSE.shape[2]
    full_bias = bias if bias is not None else q_BHTE.new_zeros(1, 1, T, S)
    if causal:
        mask = torch.ones(T, S, dtype=torch.bool, device=q_BHTE.device).tril()
    if mask is not None:
        full_bias = full_bias.masked_fill(~mask, -math.inf)
    B, H = full_bias.shape[0], q_BHTE.shape[1]
    column = sink_H.to(q_BHTE.dtype)[None, :, None, None].expand(B, H, T, 1)
    full_bias = torch.cat([full_bias.to(q_BHTE.dtype).expand(B, H, T, S), column], dim=-1)
    k_BGSE, v_BGSF = (F.pad(x, (0, 0, 0, 1)) for x in (k_BGSE, v_BGSF))
    return attend(q_BHTE, k_BGSE, v_BGSF, scores, kernel="sdpa", bias=full_bias)


def _flex(
    q_BHTE: Tensor,
    k_BGSE: Tensor,
    v_BGSF: Tensor,
    scores: Scores,
    causal: bool,
    mask: Tensor | None,
    bias: Tensor | None,
    once: Once | None,
) -> Tensor:
    """FlexAttention: bias and soft cap become part of one kernel, blocks that nobody sees are skipped."""
    if scores.dropout:
        raise ValueError("attention.kernel=flex has no dropout: set attention.dropout=0 or another kernel")
    # It brings the compiler: a second of every start, were it imported above.
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if q_BHTE.device.type == "cpu" and torch.is_grad_enabled() and q_BHTE.requires_grad:
        raise ValueError("attention.kernel=flex has no gradient on a CPU: use auto, sdpa or reference there")
    if q_BHTE.device.type != "cpu" and (width := min(q_BHTE.shape[-1], v_BGSF.shape[-1])) < FLEX_WIDTH:
        raise ValueError(
            f"attention.kernel=flex takes heads of width {FLEX_WIDTH} or more, not {width}: use auto or sdpa"
        )
    B, H, T, _ = q_BHTE.shape
    S = k_BGSE.shape[2]
    added_BHTS = None if bias is None else bias.expand(B, H, *bias.shape[2:])

    def change(score: Tensor, b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        if scores.softcap is not None:
            score = scores.softcap * torch.tanh(score / scores.softcap)
        return score if added_BHTS is None else score + added_BHTS[b, h, t, s]

    def blocks() -> Any:
        if causal:
            return create_block_mask(lambda b, h, t, s: t >= s, None, None, T, S, q_BHTE.device)
        assert mask is not None
        seen_BTS = mask.expand(B, 1, T, S)[:, 0]
        return create_block_mask(lambda b, h, t, s: seen_BTS[b, t, s], B, None, T, S, q_BHTE.device)

    block_mask = None
    if causal or mask is not None:
        # It passes over all pairs of positions: once for all layers. A compiled block has no cache.
        is_cached = once is not None and not torch.compiler.is_compiling()
        block_mask = once(blocks) if is_cached and once is not None else blocks()
    run = flex_attention if q_BHTE.device.type == "cpu" else _compiled_flex()
    return run(  # type: ignore[operator]
        q_BHTE,
        k_BGSE,
        v_BGSF,
        score_mod=change,
        block_mask=block_mask,
        scale=scores.scale,
        enable_gqa=q_BHTE.shape[1] != k_BGSE.shape[1],
    )


@functools.cache
def _compiled_flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)
