"""When the C++ kernel of attention over whole sequences is faster than PyTorch's, and the call of it.

It computes in float32 and leaves out the keys that no query of a block may look at. PyTorch's computes all
of a block's scores, in bfloat16 by matrix instructions where the processor has them. So the kernel is faster
where a mask hides much, in float32 up to some length whatever it hides, and in bfloat16 where its one pass
saves more than those instructions do: in training, whose backward pass is PyTorch's slower half, up to some
size. ``benchmarks/attention.py`` measures the sizes.

Shapes: B batch, T queries, S keys, H query heads, G key/value heads, E width of queries and keys, F width of
values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from architectures.kernels.cpu.attention_ops import SeenKeys, cpp_attention, seen_keys
from architectures.kernels.pointwise import path

LONGEST = 2048
"""Keys up to which it was measured; a block's scores for more of them would leave the processor's cache."""
MOSTLY_HIDDEN = 0.7
"""Share of the scores computed up to which a mask counts as hiding much."""
SHORTEST = {torch.float32: 128, torch.bfloat16: 32}
"""Queries and keys from which a call is worth its cost."""
EVEN, SHORTEST_UNEVEN = 4, 24
"""PyTorch's trains slowly where this does not divide the width of a head; the kernel's own length then."""
LONG = 512
"""Keys up to which it is faster in float32 where nothing is hidden; with a mask it is at any number."""
LARGEST_MASKED, LARGEST_WHOLE = 512 * 64, 256 * 64
"""Keys times width up to which it trains faster in bfloat16, with a mask that hides much and without."""


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
    trained = torch.is_grad_enabled() and any(x.requires_grad for x in (*streams, *others))
    if torch.get_num_threads() > B * G or S > LONGEST or min(T, S) < _shortest(streams[0], trained) // 2:
        return None
    if bias is not None and bias.shape[1:] != (q_BHTE.shape[1], T, S):
        return None
    if mask is not None and (mask.shape[1] != 1 or mask.shape[3] != S):
        return None
    seen = None if mask is None else seen_keys(mask, T)
    if softcap is None and not _faster(streams[0], S, trained, causal, seen, bias):
        return None
    return cpp_attention(*streams, scale=scale, softcap=softcap, causal=causal, seen=seen, bias=bias)


def _shortest(q_BHTE: Tensor, trained: bool) -> int:
    """Return the number of queries and keys from which a call is worth its cost."""
    uneven = trained and q_BHTE.shape[3] % EVEN != 0
    return SHORTEST_UNEVEN if uneven else SHORTEST[q_BHTE.dtype]


def _faster(
    q_BHTE: Tensor, S: int, trained: bool, causal: bool, seen: SeenKeys | None, bias: Tensor | None
) -> bool:
    """Return True where the kernel was measured to be faster than PyTorch's."""
    if min(q_BHTE.shape[2], S) < _shortest(q_BHTE, trained):
        return False
    if bias is not None and bias.requires_grad and torch.is_grad_enabled():
        return True  # no fused kernel of PyTorch has the gradient of a bias
    hidden = causal or (seen is not None and seen.share <= MOSTLY_HIDDEN)
    if q_BHTE.dtype == torch.float32:
        return hidden or seen is not None or S <= LONG
    return trained and S * q_BHTE.shape[3] <= (LARGEST_MASKED if hidden else LARGEST_WHOLE)
