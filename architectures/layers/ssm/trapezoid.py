"""The recurrence of Mamba-3 with the trapezoidal rule, step by step and as matrix products over chunks.

Shapes: B batch, T length, H heads, R inputs and outputs of a head, P head_dim, N state size; K chunks of Q
steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from archbench.architectures.fast_paths import kernel
from archbench.architectures.layers.ssm.ssd import chunk_decays


@dataclass(frozen=True, kw_only=True)
class TrapezoidState:
    """State after a step, with the input and key of that step, which the next step reads."""

    h_BHPN: Tensor
    """The state of each head."""
    x_BHRP: Tensor
    """The last input."""
    B_BHRN: Tensor
    """The input vectors of the last step."""


def trapezoid(
    x_BTHRP: Tensor,
    delta_BTH: Tensor,
    exponent_BTH: Tensor,
    weight_BTH: Tensor,
    B_BTHRN: Tensor,
    C_BTHRN: Tensor,
    state: TrapezoidState,
    *,
    reset_BT: Tensor | None = None,
    chunk: int = 64,
    path: str = "torch",
) -> tuple[Tensor, Tensor]:
    """The recurrence of Mamba-3 (Lahoti et al. 2026, arXiv 2603.15569).

    ``h_t = exp(exponent_t) (h_(t-1) + (1 - weight_t) delta_t u_(t-1)) + weight_t delta_t u_t`` with
    ``u_t = sum_r x_tr B_tr^T``, and ``y_tr = h_t C_tr``: an integral over the step by its two ends. A weight
    of one is Euler's rule, that of Mamba-2; one half is the trapezoidal rule.

    Args:
        exponent_BTH: the logarithms of the decays, not positive.
        state: that before the first step.
        reset_BT: True where a document begins, with a state of zeros and no input before.
        chunk: steps that ``torch`` turns into one matrix product.
        path: ``reference`` for the plain loop, ``torch`` for chunks, ``cpp`` for the loop in C++ (float32 on
            a CPU, with one input).

    Returns:
        y (B, T, H, R, P) and the last state (B, H, P, N).
    """
    now_BTH = weight_BTH * delta_BTH
    before_BTH = delta_BTH - now_BTH
    operands = (x_BTHRP, exponent_BTH, now_BTH, before_BTH, B_BTHRN, C_BTHRN, state, reset_BT)
    if path == "reference" or x_BTHRP.shape[1] == 1:
        return _recurrence(*operands)
    return _one_input(*operands, chunk, path)


def _recurrence(
    x_BTHRP: Tensor,
    exponent_BTH: Tensor,
    now_BTH: Tensor,
    before_BTH: Tensor,
    B_BTHRN: Tensor,
    C_BTHRN: Tensor,
    state: TrapezoidState,
    reset_BT: Tensor | None,
) -> tuple[Tensor, Tensor]:
    h_BHPN, last_BHPN = state.h_BHPN, _outer(state.x_BHRP, state.B_BHRN)
    outputs = []
    for t in range(x_BTHRP.shape[1]):
        if reset_BT is not None:
            kept_B111 = ~reset_BT[:, t, None, None, None]
            h_BHPN, last_BHPN = h_BHPN * kept_B111, last_BHPN * kept_B111
        decay, now, before = (x[:, t, :, None, None] for x in (exponent_BTH.exp(), now_BTH, before_BTH))
        u_BHPN = _outer(x_BTHRP[:, t], B_BTHRN[:, t])
        h_BHPN = decay * (h_BHPN + before * last_BHPN) + now * u_BHPN
        last_BHPN = u_BHPN
        outputs.append((h_BHPN[:, :, None] * C_BTHRN[:, t, :, :, None]).sum(-1))
    return torch.stack(outputs, dim=1), h_BHPN


def _outer(x_BHRP: Tensor, B_BHRN: Tensor) -> Tensor:
    return (x_BHRP[..., None] * B_BHRN[..., None, :]).sum(2)


def _one_input(
    x_BTHRP: Tensor,
    exponent_BTH: Tensor,
    now_BTH: Tensor,
    before_BTH: Tensor,
    B_BTHRN: Tensor,
    C_BTHRN: Tensor,
    state: TrapezoidState,
    reset_BT: Tensor | None,
    chunk: int,
    path: str,
) -> tuple[Tensor, Tensor]:
    """The state without the input of its step, ``g_t = h_t - now_t u_t``, has a recurrence with one input:
    ``g_t = exp(exponent_t) (g_(t-1) + (now_(t-1) + before_t) u_(t-1))``."""
    coefficient_BTH = exponent_BTH.exp() * (F.pad(now_BTH[:, :-1], (0, 0, 1, 0)) + before_BTH)
    if reset_BT is not None:
        coefficient_BTH = coefficient_BTH.masked_fill(reset_BT[..., None], 0.0)
    earlier_BTHRP = torch.cat([state.x_BHRP[:, None], x_BTHRP[:, :-1]], dim=1)
    written_BTHRP = earlier_BTHRP * coefficient_BTH[..., None, None]
    keys_BTHRN = torch.cat([state.B_BHRN[:, None], B_BTHRN[:, :-1]], dim=1)
    operands = (written_BTHRP, exponent_BTH, keys_BTHRN, C_BTHRN, state.h_BHPN, reset_BT)
    y_BTHRP, g_BHPN = _in_cpp(*operands) if path == "cpp" else _chunks(*operands, chunk)
    now_BTHRP = x_BTHRP * now_BTH[..., None, None]
    scores_BTHRR = (C_BTHRN[..., :, None, :] * B_BTHRN[..., None, :, :]).sum(-1)
    y_BTHRP = y_BTHRP + (scores_BTHRR[..., None] * now_BTHRP[..., None, :, :]).sum(-2)
    return y_BTHRP, g_BHPN + _outer(now_BTHRP[:, -1], B_BTHRN[:, -1])


def _in_cpp(
    written_BTHRP: Tensor,
    exponent_BTH: Tensor,
    keys_BTHRN: Tensor,
    C_BTHRN: Tensor,
    g_BHPN: Tensor,
    reset_BT: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return what is read, and the last state: linear attention, whose queries are C."""
    if reset_BT is not None:
        exponent_BTH = exponent_BTH.masked_fill(reset_BT[..., None], -torch.inf)
    q, k, v = (x.squeeze(3) for x in (C_BTHRN, keys_BTHRN, written_BTHRP))
    attention = kernel("gated_linear_attention")
    y_BTHP, g_BHNP = attention(q, k, v, exponent_BTH, g_BHPN.mT, scale=1.0)
    return y_BTHP[:, :, :, None], g_BHNP.mT


def _chunks(
    written_BTHRP: Tensor,
    exponent_BTH: Tensor,
    keys_BTHRN: Tensor,
    C_BTHRN: Tensor,
    g_BHPN: Tensor,
    reset_BT: Tensor | None,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """Return the same by matrix products over chunks."""
    length, R = written_BTHRP.shape[1], written_BTHRP.shape[3]
    size = min(chunk, length)

    def chunked(operand: Tensor) -> Tensor:
        """(B, T, H, ...) as (B, K, H, Q, ...); padding steps of the last chunk change no state."""
        padded = F.pad(operand, (0, 0) * (operand.ndim - 2) + (0, -length % size))
        return padded.unflatten(1, (-1, size)).transpose(2, 3)

    parts = (written_BTHRP, keys_BTHRN, C_BTHRN)
    x_BKHSP, B_BKHSN, C_BKHSN = (chunked(x).flatten(3, 4) for x in parts)  # S = Q R
    reset_BKQ = None if reset_BT is None else F.pad(reset_BT, (0, -length % size)).unflatten(1, (-1, size))
    decays = chunk_decays(chunked(exponent_BTH)[:, :, :, None], reset_BKQ, negative=False)
    between_BKHQQ, from_start_BKHQ, to_end_BKHQ, total_BKH = (decay.squeeze(3) for decay in decays)
    if R > 1:
        between_BKHQQ = between_BKHQQ.repeat_interleave(R, dim=-1).repeat_interleave(R, dim=-2)
        from_start_BKHQ, to_end_BKHQ = (
            x.repeat_interleave(R, dim=-1) for x in (from_start_BKHQ, to_end_BKHQ)
        )
    added_BKHPN = (x_BKHSP * to_end_BKHQ[..., None]).mT @ B_BKHSN
    states = []
    for total_BH, added_BHPN in zip(total_BKH.unbind(1), added_BKHPN.unbind(1), strict=True):
        states.append(g_BHPN)
        g_BHPN = total_BH[..., None, None] * g_BHPN + added_BHPN
    y_BKHSP = (C_BKHSN @ B_BKHSN.mT * between_BKHQQ) @ x_BKHSP
    y_BKHSP = y_BKHSP + (C_BKHSN @ torch.stack(states, dim=1).mT) * from_start_BKHQ[..., None]
    y_BTHRP = y_BKHSP.unflatten(3, (size, R)).transpose(2, 3).flatten(1, 2)[:, :length]
    return y_BTHRP, g_BHPN


def trapezoid_flops(length: int, heads: int, rank: int, head_dim: int, state: int) -> int:
    """Multiplications and additions of the recurrence: for each number of the state, the outer products and
    the readouts (2 each), and decay, two weights and two additions; for each head, the weights (2)."""
    return length * heads * ((4 * rank + 5) * head_dim * state + 2)
