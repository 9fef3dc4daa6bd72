"""The matrix memory of xLSTM with exponential gates: the plain recurrence, and chunks equal to it.

Beck et al. 2024 (xLSTM, arXiv 2405.04517, section 2.3), with the normaliser and the scale of xLSTM 7B
(arXiv 2503.13427, section 2). The normaliser is the memory of a value that is always one: the last column.

Shapes: B batch, T length, H heads, K key width, V value width, U = V + 1, N chunks, C positions of a chunk.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from archbench.architectures.layers.linear_attention.chunking import from_chunks, pair_sums, to_chunks

CHUNK = 64
"""Positions of a chunk, as in the authors' code."""


def mlstm(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_input_BTH: Tensor,
    log_forget_BTH: Tensor,
    memory_BHKU: Tensor,
    scale_BH: Tensor,
    *,
    starts_BT: Tensor | None = None,
    eps: float = 1e-6,
    path: str = "torch",
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor, Tensor]:
    """Memories with a sigmoid forget gate and an exponential input gate.

    ``S_t = f_t S_(t-1) + i_t k_t [v_t, 1]^T`` is read as ``[r, n] = S_t^T q_t / sqrt(K)``, and
    ``y_t = r / (max(|n|, 1) + eps exp(m_t))``. To keep exponentials in range, ``exp(-m_t) S_t`` is stored,
    with ``m_t = max(log f_t + m_(t-1), log i_t)``.

    Args:
        log_input_BTH: log i; minus infinity for an input that is not stored.
        log_forget_BTH: log f, not positive and finite.
        memory_BHKU: the stored memory before the first token.
        scale_BH: m before the first token.
        starts_BT: True where a document begins: with an empty memory and m = 0.
        path: ``reference`` for the plain recurrence, ``torch`` for chunks of matrix products.
        chunk: positions of a chunk.

    Returns:
        y (B, T, H, V), and the last memory and m.
    """
    q_BTHK = q_BTHK * q_BTHK.shape[-1] ** -0.5
    u_BTHU = F.pad(v_BTHV, (0, 1), value=1.0)
    log_first_BTH = torch.full_like(log_forget_BTH, -math.inf)
    if starts_BT is not None:  # there log f + m is log f
        log_first_BTH = torch.where(starts_BT[..., None], log_forget_BTH, log_first_BTH)
        log_forget_BTH = log_forget_BTH.masked_fill(starts_BT[..., None], -math.inf)
    gates = (log_input_BTH, log_forget_BTH, log_first_BTH)
    if path == "reference" or q_BTHK.shape[1] == 1:
        read, scales, *state = _recurrence(q_BTHK, k_BTHK, u_BTHU, *gates, memory_BHKU, scale_BH)
    else:
        size = min(chunk, q_BTHK.shape[1])
        read, scales, *state = _chunked(q_BTHK, k_BTHK, u_BTHU, *gates, memory_BHKU, scale_BH, size)
    r_BTHV, n_BTH1 = read[..., :-1], read[..., -1:]
    y_BTHV = r_BTHV / (torch.maximum(n_BTH1.abs(), (-scales[..., None]).exp()) + eps)
    return y_BTHV, state[0], state[1]


def _recurrence(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    u_BTHU: Tensor,
    log_input_BTH: Tensor,
    log_forget_BTH: Tensor,
    log_first_BTH: Tensor,
    memory_BHKU: Tensor,
    scale_BH: Tensor,
) -> tuple[Tensor, ...]:
    """Return what is read (B, T, H, U), m at every position (B, T, H), the last memory and the last m."""
    outputs, scales = [], []
    for t in range(q_BTHK.shape[1]):
        kept_BH, stored_BH = log_forget_BTH[:, t] + scale_BH, log_input_BTH[:, t]
        scale_BH = torch.maximum(torch.maximum(kept_BH, log_first_BTH[:, t]), stored_BH)
        k_BHK1 = k_BTHK[:, t, :, :, None] * (stored_BH - scale_BH).exp()[..., None, None]
        memory_BHKU = (
            memory_BHKU * (kept_BH - scale_BH).exp()[..., None, None] + k_BHK1 * u_BTHU[:, t, :, None]
        )
        outputs.append((memory_BHKU * q_BTHK[:, t, :, :, None]).sum(-2))
        scales.append(scale_BH)
    return torch.stack(outputs, dim=1), torch.stack(scales, dim=1), memory_BHKU, scale_BH


def _chunked(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    u_BTHU: Tensor,
    log_input_BTH: Tensor,
    log_forget_BTH: Tensor,
    log_first_BTH: Tensor,
    memory_BHKU: Tensor,
    scale_BH: Tensor,
    size: int,
) -> tuple[Tensor, ...]:
    """Return the same as ``_recurrence``."""
    length = q_BTHK.shape[1]
    padding = (0, 0, 0, -length % size)
    log_input_BTH, log_first_BTH = (
        F.pad(x, padding, value=-math.inf) for x in (log_input_BTH, log_first_BTH)
    )
    tensors = (q_BTHK, k_BTHK, u_BTHU, log_input_BTH, log_forget_BTH, log_first_BTH)
    q, k, u, log_input, log_forget, log_first = (to_chunks(x, size) for x in tensors)
    pair_BHNCC = pair_sums(log_forget)
    stored_BHNCC = pair_BHNCC + log_input[..., None, :]
    largest_BHNC = (pair_BHNCC + torch.maximum(log_input, log_first)[..., None, :]).amax(-1)
    since_BHNC = log_forget.cumsum(-1)
    memories, scales, decays = [], [], []
    parts = (k, u, stored_BHNCC[..., -1, :], largest_BHNC, since_BHNC)
    for key, value, stored, largest, since in zip(*(part.unbind(2) for part in parts), strict=True):
        memories.append(memory_BHKU)
        scales.append(torch.maximum(since + scale_BH[..., None], largest))
        decays.append((since + scale_BH[..., None] - scales[-1]).exp())
        scale_BH = scales[-1][..., -1]
        added_BHKU = (key * (stored - scale_BH[..., None]).exp()[..., None]).mT @ value
        memory_BHKU = decays[-1][..., -1, None, None] * memory_BHKU + added_BHKU
    scale_BHNC = torch.stack(scales, dim=2)
    before_BHNCU = (q * torch.stack(decays, dim=2)[..., None]) @ torch.stack(memories, dim=2)
    within_BHNCU = (q @ k.mT * (stored_BHNCC - scale_BHNC[..., None]).exp()) @ u
    read_BTHU, scale_BTH = (from_chunks(x, length) for x in (before_BHNCU + within_BHNCU, scale_BHNC))
    return read_BTHU, scale_BTH, memory_BHKU, scale_BH


def mlstm_flops(length: int, heads: int, key: int, value: int) -> int:
    """Multiplications and additions of the recurrence: a decay, an update (2) and a readout (2) of each entry
    of the memory, and scaled queries and keys."""
    return length * heads * (5 * key * (value + 1) + 2 * key)
