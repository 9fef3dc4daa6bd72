"""A transition that is diagonal plus low rank: the recurrence as its definition, and an equal form in chunks.

The transition of GLA is diagonal, that of the delta rule the identity plus a matrix of rank one; RWKV-7
(Peng et al. 2025, arXiv 2503.14456) has both. In a chunk, what the memory recalls for vectors ``a`` solves
a triangular system, as in the chunked delta rule (arXiv 2406.06484, section 3).

Shapes: B batch, T length, H heads, K key width, V value width, N chunks, C positions of a chunk, R rows of a
position and S columns of a position, P pairs of halves of a chunk, M positions of a half.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from archbench.architectures.fast_paths import kernel
from archbench.architectures.layers.linear_attention.chunking import from_chunks, sums_after, to_chunks

CHUNK = 64
"""Positions of a chunk: a power of two."""


def dplr(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    a_BTHK: Tensor,
    b_BTHK: Tensor,
    log_decay_BTHK: Tensor,
    initial_BHKV: Tensor | None = None,
    *,
    path: str = "torch",
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Linear attention with a transition that is diagonal plus low rank.

    ``S_t = (diag(w_t) + b_t a_t^T) S_(t-1) + k_t v_t^T`` and ``y_t = S_t^T q_t``, with
    ``w_t = exp(log_decay_t)``. The memory does not grow if no singular value of the transition exceeds one.

    Args:
        log_decay_BTHK: not positive; minus infinity together with ``a_t = 0`` forgets everything before.
        initial_BHKV: the memory before the first token; zeros if None.
        path: ``reference`` for the plain recurrence, ``torch`` for chunks of matrix products, ``cpp`` for the
            recurrence in C++ (float32 on a CPU), ``fla`` for the kernel of flash-linear-attention.
        chunk: positions of a chunk, a power of two.

    Returns:
        y (B, T, H, V) and the last memory (B, H, K, V).
    """
    assert chunk & (chunk - 1) == 0
    if path == "fla":
        return kernel("dplr", path)(q_BTHK, k_BTHK, v_BTHV, a_BTHK, b_BTHK, log_decay_BTHK, initial_BHKV)
    if initial_BHKV is None:
        initial_BHKV = v_BTHV.new_zeros(v_BTHV.shape[0], *k_BTHK.shape[2:], v_BTHV.shape[-1])
    tensors = (q_BTHK, k_BTHK, v_BTHV, a_BTHK, b_BTHK, log_decay_BTHK)
    if path == "cpp":
        return kernel("dplr", path)(*tensors, initial_BHKV)
    length = q_BTHK.shape[1]
    if path == "reference" or length == 1:
        return _recurrence(*tensors, initial_BHKV)
    size = min(chunk, 1 << (length - 1).bit_length())
    q, k, v, a, b, log_decay = (to_chunks(x, size) for x in tensors)
    y_BHNCV, last_BHKV = _chunked(q, k, v, a, b, log_decay, initial_BHKV)
    return from_chunks(y_BHNCV, length), last_BHKV


def _recurrence(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    a_BTHK: Tensor,
    b_BTHK: Tensor,
    log_decay_BTHK: Tensor,
    memory_BHKV: Tensor,
) -> tuple[Tensor, Tensor]:
    outputs = []
    for t in range(q_BTHK.shape[1]):
        q, k, a, b, log_decay = (
            x[:, t, :, :, None] for x in (q_BTHK, k_BTHK, a_BTHK, b_BTHK, log_decay_BTHK)
        )
        recalled_BH1V = (memory_BHKV * a).sum(-2, keepdim=True)
        memory_BHKV = memory_BHKV * log_decay.exp() + b * recalled_BH1V + k * v_BTHV[:, t, :, None]
        outputs.append((memory_BHKV * q).sum(-2))
    return torch.stack(outputs, dim=1), memory_BHKV


def _chunked(
    q_BHNCK: Tensor,
    k_BHNCK: Tensor,
    v_BHNCV: Tensor,
    a_BHNCK: Tensor,
    b_BHNCK: Tensor,
    log_decay_BHNCK: Tensor,
    memory_BHKV: Tensor,
) -> tuple[Tensor, Tensor]:
    """``u_i = S_(i-1)^T a_i`` is a sum over the memory at the start of the chunk, and the values and ``u_j``
    before i."""
    since_BHNCK = log_decay_BHNCK.cumsum(-2).exp()
    until_BHNCK = sums_after(log_decay_BHNCK).exp()
    # a_i reads the memory before the decay of i: as a query of the position before.
    rows_BHNCRK = torch.stack([q_BHNCK, F.pad(a_BHNCK[..., 1:, :], (0, 0, 0, 1))], dim=-2)
    columns_BHNCSK = torch.stack([k_BHNCK, b_BHNCK], dim=-2)
    scores = decayed_scores(rows_BHNCRK, columns_BHNCSK, log_decay_BHNCK)
    (qk_BHNCC, qb_BHNCC), later = (pair.unbind(3) for pair in scores.unbind(3))
    ak_BHNCC, ab_BHNCC = (F.pad(x[..., :-1, :], (0, 0, 1, 0)) for x in later)

    before_BHNCK = F.pad(since_BHNCK[..., :-1, :], (0, 0, 1, 0), value=1.0)
    sides = torch.cat([ak_BHNCC @ v_BHNCV, a_BHNCK * before_BHNCK], dim=-1)
    solved = torch.linalg.solve_triangular(-ab_BHNCC, sides, upper=False, unitriangular=True)
    # The u are linear in the memory at the start of the chunk: u = fresh + stale @ memory.
    fresh_BHNCV, stale_BHNCK = solved.split([v_BHNCV.shape[-1], a_BHNCK.shape[-1]], dim=-1)
    added_BHNKV = (k_BHNCK * until_BHNCK).mT @ v_BHNCV
    kept_BHNKC = (b_BHNCK * until_BHNCK).mT
    total_BHNK1 = since_BHNCK[..., -1, :, None]
    memories, recalled = [], []
    parts = (fresh_BHNCV, stale_BHNCK, added_BHNKV, kept_BHNKC, total_BHNK1)
    for fresh, stale, added, kept, total in zip(*(part.unbind(2) for part in parts), strict=True):
        memories.append(memory_BHKV)
        recalled.append(fresh + stale @ memory_BHKV)
        memory_BHKV = total * memory_BHKV + added + kept @ recalled[-1]
    before_BHNCV = (q_BHNCK * since_BHNCK) @ torch.stack(memories, dim=2)
    y_BHNCV = before_BHNCV + qk_BHNCC @ v_BHNCV + qb_BHNCC @ torch.stack(recalled, dim=2)
    return y_BHNCV, memory_BHKV


def decayed_scores(rows_NCRK: Tensor, columns_NCSK: Tensor, log_decay_NCK: Tensor) -> Tensor:
    """Return the scores (..., R, S, C, C) of each position i with each position j of its chunk.

    They are products of a row of i and a column of j, after the decays of all positions after j up to and
    including i; zero for j > i. Row and column meet at a border between them, not at the start of the chunk,
    so that every factor is at most one: halves of 1, 2, 4, ... positions are paired, and the second of each
    pair reads the first.
    """
    scores = (rows_NCRK[..., :, None, :] * columns_NCSK[..., None, :, :]).sum(-1)
    scores_RSPMM = scores.movedim(-3, -1)[..., None, None]
    R, S = rows_NCRK.shape[-2], columns_NCSK.shape[-2]
    half = 1
    while half < rows_NCRK.shape[-3]:
        rows = rows_NCRK.unflatten(-3, (-1, 2, half))[..., 1, :, :, :]
        columns = columns_NCSK.unflatten(-3, (-1, 2, half))[..., 0, :, :, :]
        first, second = log_decay_NCK.unflatten(-2, (-1, 2, half)).unbind(-3)
        rows = rows * second.cumsum(-2).exp()[..., None, :]
        columns = columns * sums_after(first).exp()[..., None, :]
        block = rows.flatten(-3, -2) @ columns.flatten(-3, -2).mT
        block = block.unflatten(-1, (half, S)).unflatten(-3, (half, R))  # (..., P, M, R, M, S)
        block_RSPMM = block.movedim((-3, -1), (-5, -4))
        first_RSPMM, second_RSPMM = scores_RSPMM.unflatten(-3, (-1, 2)).unbind(-3)
        upper = torch.cat([first_RSPMM, torch.zeros_like(block_RSPMM)], dim=-1)
        lower = torch.cat([block_RSPMM, second_RSPMM], dim=-1)
        scores_RSPMM = torch.cat([upper, lower], dim=-2)
        half *= 2
    return scores_RSPMM.squeeze(-3)


def dplr_flops(length: int, heads: int, key: int, value: int) -> int:
    """Multiplications and additions of the recurrence: decay, recall (2), two updates (4), readout (2)."""
    return length * heads * 9 * key * value
