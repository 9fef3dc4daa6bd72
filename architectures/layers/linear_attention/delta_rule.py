"""The delta rule, plain or with decays of heads or channels: the recurrence, and an equal form in chunks.

The memory of a head maps keys to values. Before it stores a value it subtracts
what it already recalls for that key (Schlag et al. 2021, arXiv 2102.11174). The
chunked form is that of Yang et al. 2024 (DeltaNet, arXiv 2406.06484, section 3;
with a decay of each head Gated DeltaNet, arXiv 2412.06464, section 3; of each
channel Kimi Delta Attention, arXiv 2510.26692, section 3).

Shapes: B batch, T length, H heads, K key width, V value width, N chunks, C
positions of a chunk, S updates of all tokens, R updates of the tokens of a chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor

from archbench.architectures.fast_paths import kernel
from archbench.architectures.layers.linear_attention.chunking import (
    from_chunks,
    pair_sums,
    sums_after,
    to_chunks,
)
from archbench.architectures.layers.linear_attention.dplr import decayed_scores

CHUNK = 64
"""Updates of a chunk, as in the authors' code."""


def delta_rule(
    q_BTHK: Tensor,
    k_BSHK: Tensor,
    v_BSHV: Tensor,
    beta_BSH: Tensor,
    log_decay: Tensor | None = None,
    initial_BHKV: Tensor | None = None,
    *,
    unit_keys: bool = False,
    path: str = "torch",
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """The delta rule with the memory indexed by key and value.

    ``S_t = (I - beta_t k_t k_t^T) Diag(a_t) S_(t-1) + beta_t k_t v_t^T`` and ``y_t = S_t^T q_t / sqrt(K)``,
    with ``a_t = exp(log_decay_t)``. With keys of length one, a beta between 0 and 2 keeps the memory from
    growing. With n keys, values and betas for each token, consecutive in S = n T, the memory
    decays once and is then updated n times (arXiv 2502.10297, section 3).

    Args:
        log_decay: not positive; minus infinity forgets everything before. (B, T, H) for a decay of each head;
            (B, T, H, K) for one of each channel of the keys, with a single update for each token. None does
            not decay, which is DeltaNet.
        initial_BHKV: the memory before the first token; zeros if None.
        unit_keys: scale queries and keys to length one first, see ``unit``.
        path: ``reference`` for the plain recurrence, ``torch`` for chunks of matrix products, ``cpp`` for the
            recurrence in C++ (float32 on a CPU), ``fla`` for the kernels of flash-linear-attention.
        chunk: updates of a chunk, for ``torch``; where channels decay, rounded up to a power of two.

    Returns:
        y (B, T, H, V) and the last memory (B, H, K, V).
    """
    if unit_keys and path != "cpp":
        q_BTHK, k_BSHK = unit(q_BTHK), unit(k_BSHK)
    if path == "fla":
        return kernel("delta_rule", path)(q_BTHK, k_BSHK, v_BSHV, beta_BSH, log_decay, initial_BHKV)
    if initial_BHKV is None:
        initial_BHKV = v_BSHV.new_zeros(v_BSHV.shape[0], *k_BSHK.shape[2:], v_BSHV.shape[-1])
    if path == "cpp":
        operands = (q_BTHK, k_BSHK, v_BSHV, beta_BSH, log_decay, initial_BHKV)
        return kernel("delta_rule", path)(*operands, unit_keys=unit_keys)
    q_BTHK = q_BTHK * q_BTHK.shape[-1] ** -0.5
    if path == "reference" or q_BTHK.shape[1] == 1:
        return _recurrence(q_BTHK, k_BSHK, v_BSHV, beta_BSH, log_decay, initial_BHKV)
    if log_decay is None:
        log_decay = torch.zeros_like(q_BTHK[..., 0])
    size = min(max(1, chunk * q_BTHK.shape[1] // k_BSHK.shape[1]), q_BTHK.shape[1])
    return _chunked(q_BTHK, k_BSHK, v_BSHV, beta_BSH, log_decay, initial_BHKV, size)


def unit(x_BTHK: Tensor) -> Tensor:
    """Return the vectors scaled to length one, up to a small constant, in at least float32."""
    scaled_BTHK = x_BTHK.to(torch.promote_types(x_BTHK.dtype, torch.float32))
    scaled_BTHK = scaled_BTHK * (scaled_BTHK.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
    return scaled_BTHK.to(x_BTHK.dtype)


def _recurrence(
    q_BTHK: Tensor,
    k_BSHK: Tensor,
    v_BSHV: Tensor,
    beta_BSH: Tensor,
    log_decay: Tensor | None,
    memory_BHKV: Tensor,
) -> tuple[Tensor, Tensor]:
    outputs = []
    updates = k_BSHK.shape[1] // q_BTHK.shape[1]
    for t in range(q_BTHK.shape[1]):
        if log_decay is not None:  # (B, H) or (B, H, K)
            decay = log_decay[:, t].exp()
            memory_BHKV = memory_BHKV * decay.reshape(*decay.shape[:2], -1, 1)
        for s in range(t * updates, (t + 1) * updates):
            k_BHK1, v_BH1V = k_BSHK[:, s, :, :, None], v_BSHV[:, s, :, None]
            recalled_BH1V = (memory_BHKV * k_BHK1).sum(-2, keepdim=True)
            memory_BHKV = memory_BHKV + k_BHK1 * (beta_BSH[:, s, :, None, None] * (v_BH1V - recalled_BH1V))
        outputs.append((memory_BHKV * q_BTHK[:, t, :, :, None]).sum(-2))
    return torch.stack(outputs, dim=1), memory_BHKV


def _chunked(
    q_BTHK: Tensor,
    k_BSHK: Tensor,
    v_BSHV: Tensor,
    beta_BSH: Tensor,
    log_decay: Tensor,
    memory_BHKV: Tensor,
    size: int,
) -> tuple[Tensor, Tensor]:
    """The update of each position solves a triangular system in the chunk: ``u_i`` is ``beta_i`` times
    ``v_i`` less what the memory at the start and the earlier ``u_j`` recall for ``k_i``."""
    updates = k_BSHK.shape[1] // q_BTHK.shape[1]
    by_head = log_decay.dim() == 3
    size = size if by_head else 1 << (size - 1).bit_length()
    q, decay = to_chunks(q_BTHK, size), to_chunks(log_decay, size)
    k, v, beta = (to_chunks(x, size * updates) for x in (k_BSHK, v_BSHV, beta_BSH[..., None]))
    scores = _head_scores if by_head else _channel_scores
    read_BHNCR, system_BHNRR, since, until = scores(q, beta * k, k, decay)
    # The updates are linear in the memory at the start of the chunk: u = fresh - stale @ memory.
    sides = torch.cat([beta * v, beta * k * since], dim=-1)
    solved = torch.linalg.solve_triangular(system_BHNRR, sides, upper=False, unitriangular=True)
    fresh_BHNRV, stale_BHNRK = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    kept_BHNKR = (k * until).mT
    total = since[..., -1, :, None]
    memories, written = [], []
    parts = (fresh_BHNRV, stale_BHNRK, kept_BHNKR, total)
    for fresh, stale, kept, decayed in zip(*(part.unbind(2) for part in parts), strict=True):
        memories.append(memory_BHKV)
        written.append(fresh - stale @ memory_BHKV)
        memory_BHKV = decayed * memory_BHKV + kept @ written[-1]
    last = slice(updates - 1, None, updates)
    before_BHNCV = (q * since[..., last, :]) @ torch.stack(memories, dim=2)
    within_BHNCV = read_BHNCR @ torch.stack(written, dim=2)
    return from_chunks(before_BHNCV + within_BHNCV, q_BTHK.shape[1]), memory_BHKV


def _head_scores(
    q_BHNCK: Tensor, beta_k_BHNRK: Tensor, k_BHNRK: Tensor, log_decay_BHNC: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the products of queries, and of keys times beta, with earlier keys, times the decays between the
    two; and the decays since the start of the chunk and until its end. Queries follow the last update of
    their token."""
    updates = k_BHNRK.shape[3] // q_BHNCK.shape[3]
    pause = torch.zeros_like(log_decay_BHNC)
    log_decay_BHNR = torch.stack([log_decay_BHNC, *[pause] * (updates - 1)], dim=-1).flatten(-2)
    pair_BHNRR = pair_sums(log_decay_BHNR).exp()
    read_BHNCR = q_BHNCK @ k_BHNRK.mT * pair_BHNRR[..., updates - 1 :: updates, :]
    system_BHNRR = beta_k_BHNRK @ k_BHNRK.mT * pair_BHNRR
    since_BHNR1 = log_decay_BHNR.cumsum(-1).exp()[..., None]
    return read_BHNCR, system_BHNRR, since_BHNR1, pair_BHNRR[..., -1, :, None]


def _channel_scores(
    q_BHNCK: Tensor, beta_k_BHNCK: Tensor, k_BHNCK: Tensor, log_decay_BHNCK: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the tensors of ``_head_scores`` for decays of channels and a single update for each token."""
    rows_BHNCRK = torch.stack([q_BHNCK, beta_k_BHNCK], dim=-2)
    scores_BHNRCC = decayed_scores(rows_BHNCRK, k_BHNCK[..., None, :], log_decay_BHNCK).squeeze(-3)
    read_BHNCC, system_BHNCC = scores_BHNRCC.unbind(-3)
    return read_BHNCC, system_BHNCC, log_decay_BHNCK.cumsum(-2).exp(), sums_after(log_decay_BHNCK).exp()


def delta_rule_flops(length: int, heads: int, key: int, value: int, *, decays: bool, updates: int = 1) -> int:
    """Multiplications and additions of the recurrence: for each update a recall (2) and the update (2), for
    each token a readout (2), and a decay."""
    update = 4 * key * value + 2 * value
    return length * heads * (updates * update + (3 if decays else 2) * key * value + key)
