"""The selective scan: the plain loop that defines it, and faster paths equal to it.

Shapes: B batch, T length, C channels, N state size of a channel. Inside, time
comes first (T, B, C, N), so that a step is one contiguous slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from archbench.architectures.fast_paths import kernel

CHUNK_NUMBERS = 2**20
"""Elements (4 MiB in float32) of a chunk's states, so that they fit into a cache."""
CUDA_CHUNK_NUMBERS = 2**25
"""The same on a GPU (128 MiB), where launches dominate short chunks, and their start is stored."""

_as_on_a_gpu = False


def selective_scan(
    u_BTC: Tensor,
    delta_BTC: Tensor,
    A_CN: Tensor,
    B_BTN: Tensor,
    C_BTN: Tensor,
    initial_BCN: Tensor | None = None,
    *,
    reset_BT: Tensor | None = None,
    negative: bool = False,
    path: str = "torch",
) -> tuple[Tensor, Tensor]:
    """The selective state-space recurrence of Mamba (Gu and Dao 2023, arXiv 2312.00752, eq. 2-4).

    ``h_t = exp(delta_t A) h_(t-1) + delta_t B_t u_t`` and ``y_t = C_t h_t``, each
    channel with a state of N elements. A is discretised by zero-order hold, B by
    Euler, as in the authors' code.

    Args:
        initial_BCN: the state before the first step; zeros if None.
        reset_BT: True where the state is reset before the step, because a document begins.
        negative: the decay is ``2 exp(delta_t A) - 1``, in [-1, 1] instead of [0, 1]
            (Grazzi et al. 2024, arXiv 2411.12537, section 4).
        path: ``mamba_ssm``, ``cpp`` for C++ (float32 on a CPU), ``torch`` for chunks
            with an explicit gradient, or ``reference`` for the plain loop under
            autograd. Same meaning, same shapes.

    Returns:
        y (B, T, C) and the last state (B, C, N).
    """
    if path == "mamba_ssm":
        return kernel("selective_scan", path)(u_BTC, delta_BTC, A_CN, B_BTN, C_BTN)
    if initial_BCN is None:
        initial_BCN = u_BTC.new_zeros(u_BTC.shape[0], *A_CN.shape)
    keep_BT = None if reset_BT is None else (~reset_BT).to(u_BTC.dtype)
    if path == "cpp":
        operands = (u_BTC, delta_BTC, A_CN, B_BTN, C_BTN, initial_BCN)
        return kernel("selective_scan", path)(*operands, keep_BT, negative)
    u, delta, B, C = (x.transpose(0, 1) for x in (u_BTC, delta_BTC, B_BTN, C_BTN))
    keep = None if keep_BT is None else keep_BT.T
    run = _scan_reference if path == "reference" else _Scan.apply
    y_TBC, last_BCN = run(u, delta, A_CN, B, C, initial_BCN, keep, negative)
    return y_TBC.transpose(0, 1), last_BCN


def _scan_reference(
    u_TBC: Tensor,
    delta_TBC: Tensor,
    A_CN: Tensor,
    B_TBN: Tensor,
    C_TBN: Tensor,
    h_BCN: Tensor,
    keep_TB: Tensor | None,
    negative: bool,
) -> tuple[Tensor, Tensor]:
    outputs = []
    for t, (u_BC, delta_BC, B_BN, C_BN) in enumerate(
        zip(*(x.unbind(0) for x in (u_TBC, delta_TBC, B_TBN, C_TBN)), strict=True)
    ):
        decay_BCN = (delta_BC[..., None] * A_CN).exp()
        if negative:
            decay_BCN = 2 * decay_BCN - 1
        if keep_TB is not None:
            decay_BCN = decay_BCN * keep_TB[t, :, None, None]
        h_BCN = decay_BCN * h_BCN + (delta_BC * u_BC)[..., None] * B_BN[:, None, :]
        outputs.append((h_BCN * C_BN[:, None, :]).sum(-1))
    return torch.stack(outputs), h_BCN


def _chunk_length(state: Tensor) -> int:
    """Return the steps of a chunk with states of this size."""
    numbers = CUDA_CHUNK_NUMBERS if state.is_cuda or _as_on_a_gpu else CHUNK_NUMBERS
    return max(1, numbers // state.numel())


@contextmanager
def gpu_chunks() -> Iterator[None]:
    """Use the chunk length of a GPU in the block, to simulate a step of a GPU on a CPU without memory."""
    global _as_on_a_gpu
    previous, _as_on_a_gpu = _as_on_a_gpu, True
    try:
        yield
    finally:
        _as_on_a_gpu = previous


class _Scan(torch.autograd.Function):
    """The scan in chunks of time. The backward pass recomputes all but the states between chunks.

    With g the gradient at a state, ``g_t = C_t dy_t + decay_(t+1) g_(t+1)``, run
    backwards; every other gradient is a product of g and saved tensors.
    """

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        delta: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        initial: Tensor,
        keep: Tensor | None,
        negative: bool,
    ) -> tuple[Tensor, Tensor]:
        u, delta, B, C = (x.contiguous() for x in (u, delta, B, C))
        length = _chunk_length(initial)
        h, starts, outputs = initial, [], []
        for chunk in _chunks(u.shape[0], length):
            starts.append(h)
            decay = _decay(delta[chunk], A, None if keep is None else keep[chunk], negative)
            states = _states(decay, u[chunk], delta[chunk], B[chunk], h)
            outputs.append((states @ C[chunk][..., None]).squeeze(-1))
            h = states[-1].clone()
        ctx.save_for_backward(u, delta, A, B, C, torch.stack(starts), keep)
        ctx.length, ctx.negative = length, negative
        return torch.cat(outputs), h

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dy_TBC, carry = gradients
        u, delta, A, B, C, starts, keep = ctx.saved_tensors
        du, d_delta, dB, dC = (torch.empty_like(x) for x in (u, delta, B, C))
        dA = torch.zeros_like(A)
        for index, chunk in reversed(list(enumerate(_chunks(u.shape[0], ctx.length)))):
            keep_chunk = None if keep is None else keep[chunk]
            decay = _decay(delta[chunk], A, keep_chunk, ctx.negative)
            states = _states(decay, u[chunk], delta[chunk], B[chunk], starts[index])
            dC[chunk] = (dy_TBC[chunk][:, :, None, :] @ states).squeeze(2)
            g = dy_TBC[chunk][..., None] * C[chunk][:, :, None, :]
            g[-1].add_(carry)
            g_t, decay_t = g.unbind(0), decay.unbind(0)
            for t in range(len(g_t) - 2, -1, -1):
                g_t[t].addcmul_(decay_t[t + 1], g_t[t + 1])
            carry = decay_t[0] * g_t[0]
            step = delta[chunk] * u[chunk]
            dB[chunk] = (step[:, :, None, :] @ g).squeeze(2)
            d_step = (g @ B[chunk][..., None]).squeeze(-1)
            du[chunk] = d_step * delta[chunk]
            # From here on g is the gradient at the exponent delta A.
            g[1:].mul_(states[:-1])
            g[0].mul_(starts[index])
            g.mul_(_slope(decay, keep_chunk, ctx.negative))
            dA += torch.einsum("tbc,tbcn->cn", delta[chunk], g)
            d_delta[chunk] = d_step * u[chunk] + (g * A).sum(-1)
        return du, d_delta, dA, dB, dC, carry, None, None


def _decay(delta: Tensor, A: Tensor, keep: Tensor | None, negative: bool) -> Tensor:
    """Return the decay of each state at each step (T, B, C, N)."""
    decay = (delta[..., None] * A).exp_()
    if negative:
        decay.mul_(2).sub_(1)
    return decay if keep is None else decay.mul_(keep[..., None, None])


def _slope(decay: Tensor, keep: Tensor | None, negative: bool) -> Tensor:
    """The derivative of ``decay``, which is overwritten, by its exponent."""
    if negative:
        decay.add_(1)
        return decay if keep is None else decay.mul_(keep[..., None, None])
    return decay


def _states(decay: Tensor, u: Tensor, delta: Tensor, B: Tensor, h: Tensor) -> Tensor:
    """The states (T, B, C, N) of a chunk that begins in state ``h``."""
    states = (delta * u)[..., None] * B[:, :, None, :]
    for decay_t, state_t in zip(decay.unbind(0), states.unbind(0), strict=True):
        h = state_t.addcmul_(decay_t, h)
    return states


def _chunks(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def selective_scan_flops(length: int, channels: int, state: int) -> int:
    """Multiplications and additions of the recurrence: exponent, input, update (2) and readout (2).

    The additional one of each channel is its input times the time step.
    """
    return length * channels * (1 + 6 * state)
