"""Linear attention with a decay for each channel of the key: the plain recurrence, and chunks equal to it.

Shapes: B batch, T length, H heads, K key width, V value width, N chunks, C
positions of a chunk, P pairs of halves of a chunk, M positions of a half.
"""

from __future__ import annotations

import torch
from torch import Tensor

from archbench.architectures.fast_paths import kernel
from archbench.architectures.layers.linear_attention.chunking import from_chunks, sums_after, to_chunks

CHUNK = 64
"""Positions of a chunk: a power of two."""


def gated_linear_attention(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_decay_BTHK: Tensor,
    initial_BHKV: Tensor | None = None,
    *,
    path: str = "torch",
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Gated linear attention (Yang et al. 2023, arXiv 2312.06635, section 4).

    ``S_t = diag(a_t) S_(t-1) + k_t v_t^T`` and ``y_t = S_t^T q_t / sqrt(K)``, with
    ``a_t = exp(log_decay_t)``.

    Args:
        q_BTHK: divided here by the root of K.
        log_decay_BTHK: not positive; minus infinity forgets everything before.
        initial_BHKV: the memory before the first token; zeros if None.
        path: ``reference`` for the plain recurrence, ``torch`` for chunks of matrix products, ``cpp`` for the
            recurrence in C++ (float32 on a CPU), ``fla`` for the kernel of flash-linear-attention.
        chunk: positions of a chunk for ``torch``, a power of two.

    Returns:
        y (B, T, H, V) and the last memory (B, H, K, V).
    """
    assert chunk & (chunk - 1) == 0
    if path == "fla":
        return kernel("gated_linear_attention", path)(q_BTHK, k_BTHK, v_BTHV, log_decay_BTHK, initial_BHKV)
    if initial_BHKV is None:
        initial_BHKV = v_BTHV.new_zeros(v_BTHV.shape[0], *k_BTHK.shape[2:], v_BTHV.shape[-1])
    if path == "cpp":
        return kernel("gated_linear_attention", path)(q_BTHK, k_BTHK, v_BTHV, log_decay_BTHK, initial_BHKV)
    q_BTHK = q_BTHK * q_BTHK.shape[-1] ** -0.5
    length = q_BTHK.shape[1]
    if path == "reference" or length == 1:
        return _recurrence(q_BTHK, k_BTHK, v_BTHV, log_decay_BTHK, initial_BHKV)
    size = min(chunk, 1 << (length - 1).bit_length())
    return _chunked(q_BTHK, k_BTHK, v_BTHV, log_decay_BTHK, initial_BHKV, size)


def _recurrence(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, log_decay_BTHK: Tensor, memory_BHKV: Tensor
) -> tuple[Tensor, Tensor]:
    outputs = []
    for t in range(q_BTHK.shape[1]):
        q_BHK1, k_BHK1, v_BH1V = q_BTHK[:, t, :, :, None], k_BTHK[:, t, :, :, None], v_BTHV[:, t, :, None]
        memory_BHKV = memory_BHKV * log_decay_BTHK[:, t, :, :, None].exp() + k_BHK1 * v_BH1V
        outputs.append((memory_BHKV * q_BHK1).sum(-2))
    return torch.stack(outputs, dim=1), memory_BHKV


def _chunked(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, log_decay_BTHK: Tensor, memory_BHKV: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    q, k, v, log_decay = (to_chunks(x, size) for x in (q_BTHK, k_BTHK, v_BTHV, log_decay_BTHK))
    since_BHNCK = log_decay.cumsum(-2).exp()
    added_BHNKV = (k * sums_after(log_decay).exp()).mT @ v
    total_BHNK1 = since_BHNCK[..., -1, :, None]
    memories = []
    for added, total in zip(added_BHNKV.unbind(2), total_BHNK1.unbind(2), strict=True):
        memories.append(memory_BHKV)
        memory_BHKV = total * memory_BHKV + added
    before_BHNCV = (q * since_BHNCK) @ torch.stack(memories, dim=2)
    y_BHNCV = before_BHNCV + _within(q, k, v, log_decay)
    return from_chunks(y_BHNCV, q_BTHK.shape[1]), memory_BHKV


def _within(q_BHNCK: Tensor, k_BHNCK: Tensor, v_BHNCV: Tensor, log_decay_BHNCK: Tensor) -> Tensor:
    """Return what the positions of a chunk read of each other.

    The decay between j and i cannot be split into a factor of i and one of j at a
    common point before both: one of them would overflow. It can at a point between
    them. So halves of 1, 2, 4, ... positions are paired, the second of each pair
    reads the first through the border, and every factor is at most one.
    """
    y_BHNCV = (q_BHNCK * k_BHNCK).sum(-1, keepdim=True) * v_BHNCV
    half = 1
    while half < q_BHNCK.shape[3]:
        tensors = (q_BHNCK, k_BHNCK, v_BHNCV, log_decay_BHNCK)
        q, k, v, log_decay = (x.unflatten(3, (-1, 2, half)) for x in tensors)
        since_BHNPMK = log_decay[..., 1, :, :].cumsum(-2).exp()
        until_BHNPMK = sums_after(log_decay[..., 0, :, :]).exp()
        scores_BHNPMM = (q[..., 1, :, :] * since_BHNPMK) @ (k[..., 0, :, :] * until_BHNPMK).mT
        read_BHNPMV = scores_BHNPMM @ v[..., 0, :, :]
        y_BHNCV = y_BHNCV + torch.stack([torch.zeros_like(read_BHNPMV), read_BHNPMV], dim=4).flatten(3, 5)
        half *= 2
    return y_BHNCV


def gated_linear_attention_flops(length: int, heads: int, key: int, value: int) -> int:
    """Multiplications and additions of the recurrence: a decay, an update (2) and a readout (2)."""
    return length * heads * (5 * key * value + key)
