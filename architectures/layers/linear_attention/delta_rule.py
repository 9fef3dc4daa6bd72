"""The delta rule, plain and gated: the recurrence as its definition, and an equal form in chunks.

The memory of a head maps keys to values. Before it stores a value it subtracts
what it already recalls for that key (Schlag et al. 2021, arXiv 2102.11174). The
chunked form is that of Yang et al. 2024 (DeltaNet, arXiv 2406.06484, section 3;
with decay Gated DeltaNet, arXiv 2412.06464, section 3).

Shapes: B batch, T length, H heads, K key width, V value width, N chunks, C
positions of a chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor

from architectures.kernels import fla
from architectures.layers.linear_attention.chunking import from_chunks, pair_sums, to_chunks

CHUNK = 64
"""Positions of a chunk, as in the authors' code."""


def delta_rule(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    beta_BTH: Tensor,
    log_decay_BTH: Tensor | None = None,
    initial_BHKV: Tensor | None = None,
    *,
    path: str = "torch",
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """The gated delta rule (arXiv 2412.06464, section 3), with the memory indexed by key and value.

    ``S_t = (I - beta_t k_t k_t^T) a_t S_(t-1) + beta_t k_t v_t^T`` and
    ``y_t = S_t^T q_t / sqrt(K)``, with ``a_t = exp(log_decay_t)``. Keys are expected
    to have length one; a beta between 0 and 2 then keeps the memory from growing.

    Args:
        log_decay_BTH: not positive; minus infinity forgets everything before. None does not decay,
            which is DeltaNet.
        initial_BHKV: the memory before the first token; zeros if None.
        path: ``reference`` for the plain recurrence, ``torch`` for chunks of matrix products, ``fla`` for
            the kernel of flash-linear-attention.
        chunk: positions of a chunk, for ``torch``.

    Returns:
        y (B, T, H, V) and the last memory (B, H, K, V).
    """
    if path == "fla" and q_BTHK.shape[1] > 1:
        return fla.delta_rule(q_BTHK, k_BTHK, v_BTHV, beta_BTH, log_decay_BTH, initial_BHKV)
    if initial_BHKV is None:
        initial_BHKV = v_BTHV.new_zeros(v_BTHV.shape[0], *k_BTHK.shape[2:], v_BTHV.shape[-1])
    q_BTHK = q_BTHK * q_BTHK.shape[-1] ** -0.5
    if path == "reference" or q_BTHK.shape[1] == 1:
        return _recurrence(q_BTHK, k_BTHK, v_BTHV, beta_BTH, log_decay_BTH, initial_BHKV)
    if log_decay_BTH is None:
        log_decay_BTH = torch.zeros_like(beta_BTH)
    size = min(chunk, q_BTHK.shape[1])
    return _chunked(q_BTHK, k_BTHK, v_BTHV, beta_BTH, log_decay_BTH, initial_BHKV, size)


def _recurrence(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    beta_BTH: Tensor,
    log_decay_BTH: Tensor | None,
    memory_BHKV: Tensor,
) -> tuple[Tensor, Tensor]:
    outputs = []
    for t in range(q_BTHK.shape[1]):
        q_BHK1, k_BHK1, v_BH1V = q_BTHK[:, t, :, :, None], k_BTHK[:, t, :, :, None], v_BTHV[:, t, :, None]
        if log_decay_BTH is not None:
            memory_BHKV = memory_BHKV * log_decay_BTH[:, t, :, None, None].exp()
        recalled_BH1V = (memory_BHKV * k_BHK1).sum(-2, keepdim=True)
        memory_BHKV = memory_BHKV + k_BHK1 * (beta_BTH[:, t, :, None, None] * (v_BH1V - recalled_BH1V))
        outputs.append((memory_BHKV * q_BHK1).sum(-2))
    return torch.stack(outputs, dim=1), memory_BHKV


def _chunked(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    beta_BTH: Tensor,
    log_decay_BTH: Tensor,
    memory_BHKV: Tensor,
    size: int,
) -> tuple[Tensor, Tensor]:
    """The update of each position solves a triangular system in the chunk: ``u_i`` is ``beta_i`` times
    ``v_i`` less what the memory at the start and the earlier ``u_j`` recall for ``k_i``."""
    tensors = (q_BTHK, k_BTHK, v_BTHV, beta_BTH[..., None], log_decay_BTH)
    q, k, v, beta, log_decay = (to_chunks(x, size) for x in tensors)
    pair_BHNCC = pair_sums(log_decay).exp()
    since_BHNC1 = log_decay.cumsum(-1).exp()[..., None]
    # The updates are linear in the memory at the start of the chunk: u = fresh - stale @ memory.
    system_BHNCC = (beta * k) @ k.mT * pair_BHNCC
    sides = torch.cat([beta * v, beta * k * since_BHNC1], dim=-1)
    solved = torch.linalg.solve_triangular(system_BHNCC, sides, upper=False, unitriangular=True)
    fresh_BHNCV, stale_BHNCK = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    kept_BHNKC = (k * pair_BHNCC[..., -1, :, None]).mT
    total_BHN11 = since_BHNC1[..., -1:, :]
    memories, updates = [], []
    parts = (fresh_BHNCV, stale_BHNCK, kept_BHNKC, total_BHN11)
    for fresh, stale, stored, total in zip(*(part.unbind(2) for part in parts), strict=True):
        memories.append(memory_BHKV)
        updates.append(fresh - stale @ memory_BHKV)
        memory_BHKV = total * memory_BHKV + stored @ updates[-1]
    before_BHNCV = (q * since_BHNC1) @ torch.stack(memories, dim=2)
    within_BHNCV = (q @ k.mT * pair_BHNCC) @ torch.stack(updates, dim=2)
    return from_chunks(before_BHNCV + within_BHNCV, q_BTHK.shape[1]), memory_BHKV


def delta_rule_flops(length: int, heads: int, key: int, value: int, *, decays: bool) -> int:
    """Multiplications and additions of the recurrence: recall (2), update (2) and readout (2), a decay."""
    return length * heads * ((7 if decays else 6) * key * value + 2 * value + key)
