"""State-space duality: the recurrence of Mamba-2, step by step and as matrix products over chunks.

Shapes: B batch, T length, H heads, P head_dim, G groups of heads that share B and
C, R heads of a group, N state size; K chunks of Q steps.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from archbench.architectures.fast_paths import kernel

SMALLEST = 1e-30
"""Decays nearer to zero are taken for this: their logarithm must be finite."""


def ssd(
    x_BTHP: Tensor,
    delta_BTH: Tensor,
    A_H: Tensor,
    B_BTGN: Tensor,
    C_BTGN: Tensor,
    initial_BHPN: Tensor | None = None,
    *,
    reset_BT: Tensor | None = None,
    negative: bool = False,
    chunk: int = 64,
    path: str = "torch",
) -> tuple[Tensor, Tensor]:
    """The recurrence of Mamba-2 (Dao and Gu 2024, arXiv 2405.21060, eq. 1 with scalar A, section 6).

    ``h_t = exp(delta_t A) h_(t-1) + delta_t x_t B_t^T`` and ``y_t = h_t C_t``, each head with
    a state of P x N elements. Heads of a group, H / G in succession, share B and C.

    Args:
        initial_BHPN: the state before the first step; zeros if None.
        reset_BT: True where the state is reset before the step, because a document begins.
        negative: the decay is ``2 exp(delta_t A) - 1``, in [-1, 1] instead of [0, 1]
            (Grazzi et al. 2024, arXiv 2411.12537, section 4).
        chunk: steps that ``torch`` and ``mamba_ssm`` turn into one matrix product.
        path: ``reference`` for the plain loop, ``torch`` for chunks in PyTorch, ``cpp`` for the
            loop in C++ (float32 on a CPU), ``mamba_ssm`` for mamba-ssm, ``fla`` for
            flash-linear-attention. Same meaning, same shapes.

    Returns:
        y (B, T, H, P) and the last state (B, H, P, N).
    """
    if path == "mamba_ssm" and x_BTHP.shape[1] > 1:  # a single step is quicker without
        assert not negative
        return kernel("ssd", path)(x_BTHP, delta_BTH, A_H, B_BTGN, C_BTGN, initial_BHPN, reset_BT, chunk)
    if path == "fla" and x_BTHP.shape[1] > 1:
        assert not negative
        return kernel("ssd", path)(x_BTHP, delta_BTH, A_H, B_BTGN, C_BTGN, initial_BHPN, reset_BT)
    if initial_BHPN is None:
        initial_BHPN = x_BTHP.new_zeros(x_BTHP.shape[0], *x_BTHP.shape[2:], B_BTGN.shape[-1])
    exponent_BTH = delta_BTH * A_H
    if path == "cpp" and x_BTHP.shape[1] > 1:
        decay_BTH = _decay(exponent_BTH, reset_BT, negative)
        return kernel("ssd", path)(x_BTHP, delta_BTH, decay_BTH, B_BTGN, C_BTGN, initial_BHPN)
    x_BTHP = x_BTHP * delta_BTH[..., None]
    if path == "reference" or x_BTHP.shape[1] == 1:
        return _recurrence(x_BTHP, exponent_BTH, B_BTGN, C_BTGN, initial_BHPN, reset_BT, negative)
    return _chunks(x_BTHP, exponent_BTH, B_BTGN, C_BTGN, initial_BHPN, reset_BT, negative, chunk)


def _recurrence(
    x_BTHP: Tensor,
    exponent_BTH: Tensor,
    B_BTGN: Tensor,
    C_BTGN: Tensor,
    h_BHPN: Tensor,
    reset_BT: Tensor | None,
    negative: bool,
) -> tuple[Tensor, Tensor]:
    decay_BTH = _decay(exponent_BTH, reset_BT, negative)
    heads = x_BTHP.shape[2] // B_BTGN.shape[2]
    outputs = []
    for x_BHP, decay_BH, B_BGN, C_BGN in zip(
        *(operand.unbind(1) for operand in (x_BTHP, decay_BTH, B_BTGN, C_BTGN)), strict=True
    ):
        B_BHN, C_BHN = (part.repeat_interleave(heads, dim=1) for part in (B_BGN, C_BGN))
        h_BHPN = decay_BH[..., None, None] * h_BHPN + x_BHP[..., None] * B_BHN[:, :, None, :]
        outputs.append((h_BHPN * C_BHN[:, :, None, :]).sum(-1))
    return torch.stack(outputs, dim=1), h_BHPN


def _decay(exponent_BTH: Tensor, reset_BT: Tensor | None, negative: bool) -> Tensor:
    """Return the decay of a head's state at each step."""
    decay_BTH = exponent_BTH.exp()
    if negative:
        decay_BTH = 2 * decay_BTH - 1
    return decay_BTH if reset_BT is None else decay_BTH.masked_fill(reset_BT[..., None], 0.0)


def _chunks(
    x_BTHP: Tensor,
    exponent_BTH: Tensor,
    B_BTGN: Tensor,
    C_BTGN: Tensor,
    h_BHPN: Tensor,
    reset_BT: Tensor | None,
    negative: bool,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """The block decomposition of section 6, with one product for all heads that share B and C."""
    length, heads, groups = x_BTHP.shape[1], x_BTHP.shape[2], B_BTGN.shape[2]
    size = min(chunk, length)

    def chunked(operand: Tensor) -> Tensor:
        """(B, T, G, ...) as (B, K, G, Q, ...); padding steps of the last chunk change no state."""
        padded = F.pad(operand, (0, 0) * (operand.ndim - 2) + (0, -length % size))
        return padded.unflatten(1, (-1, size)).transpose(2, 3)

    B_BKGQN, C_BKGQN = chunked(B_BTGN), chunked(C_BTGN)
    x_BKGQRP = chunked(x_BTHP.unflatten(2, (groups, -1)))
    log_BKGRQ = chunked(exponent_BTH.unflatten(2, (groups, -1))).transpose(3, 4)
    reset_BKQ = None if reset_BT is None else F.pad(reset_BT, (0, -length % size)).unflatten(1, (-1, size))
    between, from_start, to_end, total = chunk_decays(log_BKGRQ, reset_BKQ, negative)

    weights_BKGRQQ = (C_BKGQN @ B_BKGQN.mT).unsqueeze(3) * between
    y_BKGRQP = weights_BKGRQQ @ x_BKGQRP.transpose(3, 4)
    added_BKGRPN = _added(x_BKGQRP, to_end, B_BKGQN)
    states, h = [], h_BHPN.unflatten(1, (groups, -1))
    for whole_BGR, added_BGRPN in zip(total.unbind(1), added_BKGRPN.unbind(1), strict=True):
        states.append(h)
        h = whole_BGR[..., None, None] * h + added_BGRPN
    states_BKGSN = torch.stack(states, dim=1).flatten(3, 4)  # S = R P, all elements read with the same C
    read_BKGQRP = (C_BKGQN @ states_BKGSN.mT).unflatten(-1, (heads // groups, -1))
    y_BKGQRP = y_BKGRQP.transpose(3, 4) + read_BKGQRP * from_start.transpose(3, 4)[..., None]
    y_BTHP = y_BKGQRP.transpose(2, 3).flatten(1, 2)[:, :length].flatten(2, 3)
    return y_BTHP, h.flatten(1, 2)


def _added(x_BKGQRP: Tensor, to_end_BKGRQ: Tensor, B_BKGQN: Tensor) -> Tensor:
    """Return the contribution of each chunk to the state (B, K, G, R, P, N) at its end."""
    heads = x_BKGQRP.shape[4]
    left_BKGQS = (x_BKGQRP * to_end_BKGRQ.transpose(3, 4)[..., None]).flatten(4, 5)
    return (left_BKGQS.mT @ B_BKGQN).unflatten(3, (heads, -1))


def chunk_decays(
    log_BKGRQ: Tensor, reset_BKQ: Tensor | None, negative: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the decay of a state between any two steps of a chunk (..., Q, Q), since its start, until its
    end (..., Q), and from start to end (...).

    Sums of logarithms are computed in float64: in float32 the small difference of two
    large sums, and its gradient, would be lost.
    """
    precision, sign = log_BKGRQ.dtype, None
    if negative:
        decay_BKGRQ = 2 * log_BKGRQ.exp() - 1
        sign = torch.where(decay_BKGRQ < 0, -1.0, 1.0).to(precision).cumprod(-1)
        log_BKGRQ = decay_BKGRQ.abs().clamp_min(SMALLEST).log()
    sums = log_BKGRQ.double().cumsum(-1)
    between = _Between.apply(sums, precision)
    from_start, to_end = sums.to(precision).exp(), (sums[..., -1:] - sums).to(precision).exp()
    total = from_start[..., -1]
    if sign is not None:
        between = between * (sign[..., :, None] * sign[..., None, :])
        from_start, to_end, total = from_start * sign, to_end * sign * sign[..., -1:], total * sign[..., -1]
    if reset_BKQ is not None:
        count = reset_BKQ.cumsum(-1)[:, :, None, None]  # documents begun in this chunk
        between = between.masked_fill(count[..., :, None] != count[..., None, :], 0.0)
        from_start = from_start.masked_fill(count > 0, 0.0)
        to_end = to_end.masked_fill(count != count[..., -1:], 0.0)
        total = total.masked_fill(count[..., -1] > 0, 0.0)
    return between, from_start, to_end, total


class _Between(torch.autograd.Function):
    """exp(sum_i - sum_j) for j <= i, else 0 (..., Q, Q), and its gradient without tables in float64."""

    @staticmethod
    def forward(ctx: Any, sums: Tensor, precision: torch.dtype) -> Tensor:
        size = sums.shape[-1]
        later = torch.ones(size, size, dtype=torch.bool, device=sums.device).triu(1)
        between = (sums[..., :, None] - sums[..., None, :]).to(precision)
        between.masked_fill_(later, -torch.inf).exp_()
        ctx.save_for_backward(between)
        return between

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (between,) = ctx.saved_tensors
        exponent = gradients[0] * between
        return exponent.sum(-1, dtype=torch.float64) - exponent.sum(-2, dtype=torch.float64), None


def ssd_flops(length: int, heads: int, head_dim: int, state: int) -> int:
    """Multiplications and additions of the recurrence, whichever path runs: exponent, input and, for each
    number of the state, outer product, decay, addition and readout (2)."""
    return length * heads * (1 + head_dim * (1 + 5 * state))
