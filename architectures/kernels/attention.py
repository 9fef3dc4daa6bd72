"""When the C++ kernel of attention over full sequences is faster than PyTorch's, and the call of it.

It computes in float32 and skips keys that no query of a block may attend to. PyTorch's computes all
of a block's scores, in bfloat16 by matrix instructions where the processor has them. So the kernel is faster
where a mask hides much, and in training in bfloat16, where PyTorch's backward pass is slow. The sizes
are in ``cpu.where``.

Shapes: B batch, T queries, S keys, H query heads, G key/value heads, E width of queries and keys, F width of
values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from archbench.architectures.fast_paths import implements, path
from archbench.architectures.kernels.cpu.transformer_ops import SeenKeys, cpp_attention, seen_keys
from archbench.architectures.kernels.cpu.where import NEVER, AttentionRule, attention_rule

LONGEST = 2048
"""Keys up to which it was measured; a block's scores for more of them would leave the processor's cache."""
MOSTLY_HIDDEN = 0.7
"""Share of the scores computed up to which a mask counts as hiding much."""
EVEN = 4
"""PyTorch's trains slowly where this does not divide the width of a head."""


@implements("attention")
def blockwise(
    q_BHTE: Tensor,
    k_BGSE: Tensor,
    v_BGSF: Tensor,
    *,
    scale: float,
    softcap: float | None = None,
    causal: bool = False,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor | None:
    """Return attention by the C++ kernel, (B, H, T, F), or None where PyTorch's is as fast or must run.

    Args: those of ``cpp_attention``. Under autocast queries, keys and values are cast, as PyTorch's are.
    """
    streams = [q_BHTE, k_BGSE, v_BGSF]
    if torch.is_autocast_enabled("cpu"):
        streams = [x.to(torch.get_autocast_dtype("cpu")) for x in streams]
    others = [] if bias is None else [bias]
    if path(*streams, *others) != "cpp" or len({x.dtype for x in streams}) > 1:
        return None
    (B, G, S, _), T = k_BGSE.shape, q_BHTE.shape[2]
    if torch.get_num_threads() > B * G or S > LONGEST:
        return None
    if bias is not None and bias.shape[1:] != (q_BHTE.shape[1], T, S):
        return None
    if mask is not None and (mask.shape[1] != 1 or mask.shape[3] != S):
        return None
    trained = torch.is_grad_enabled() and any(x.requires_grad for x in (*streams, *others))
    rule = attention_rule(streams[0].dtype, trained=trained)
    if min(T, S) < rule.shortest:
        return None
    seen = None if mask is None else seen_keys(mask, T)
    shortest = _shortest(
        rule,
        streams[1],
        causal=causal,
        seen=seen,
        trained=trained,
        capped=softcap is not None,
        bias_trained=bias is not None and bias.requires_grad and torch.is_grad_enabled(),
    )
    if min(T, S) < shortest:
        return None
    return cpp_attention(*streams, scale=scale, softcap=softcap, causal=causal, seen=seen, bias=bias)


def _shortest(
    rule: AttentionRule,
    k_BGSE: Tensor,
    *,
    causal: bool,
    seen: SeenKeys | None,
    trained: bool,
    capped: bool,
    bias_trained: bool,
) -> int:
    """Return the number of queries and keys from which the kernel is faster than PyTorch's."""
    keys, width = k_BGSE.shape[2:]
    hidden = causal or (seen is not None and seen.share <= MOSTLY_HIDDEN)
    limits = [rule.capped] if capped else []
    if keys * width <= (rule.largest_hidden if hidden else rule.largest):
        limits.append(rule.hidden if hidden else rule.whole if seen is None else rule.masked)
        if causal:
            limits.append(rule.causal)
        if trained and width % EVEN:
            limits.append(rule.uneven)
        if bias_trained:  # no fused kernel of PyTorch has the gradient of a bias
            limits.append(rule.hidden)
    return min(limits, default=NEVER)
