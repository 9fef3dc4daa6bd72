"""Impulse responses of linear systems, and convolution with them.

Shapes: B batch, T length, D channels, M conjugate pairs of the state, N = 2 M state of
the real system, K nodes on the upper half of the unit circle, R rows and S length of
documents laid under each other (R elsewhere the rank of P), I tokens of all rows end to end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from archbench.architectures.layers.ssm.discretization import ALPHA


def vandermonde_reference(log_A_DM: Tensor, CB_DM: Tensor, length: int) -> Tensor:
    """Re(sum C B A^t), (D, T), of a diagonal system: each power computed explicitly (arXiv 2206.11893,
    section 3)."""
    steps_T = torch.arange(length, device=log_A_DM.device)
    return torch.einsum("dm,dmt->dt", CB_DM, (log_A_DM[..., None] * steps_T).exp()).real


def vandermonde(log_A_DM: Tensor, CB_DM: Tensor, length: int) -> Tensor:
    """Compute ``vandermonde_reference`` with A^(R q + r) = A^(R q) A^r: two short tables and one matrix
    product."""
    inner = 2 ** math.ceil(math.log2(max(length, 2)) / 2)
    outer = math.ceil(length / inner)
    device = log_A_DM.device
    low_DMR = powers(log_A_DM, torch.arange(inner, device=device))
    high_DMQ = powers(log_A_DM, inner * torch.arange(outer, device=device))
    kernel_DQR = (CB_DM[..., None] * high_DMQ).transpose(1, 2) @ low_DMR
    return kernel_DQR.real.flatten(1)[:, :length]


def powers(log_A_DM: Tensor, steps_K: Tensor) -> Tensor:
    """A^t (D, M, K) at each of the steps: magnitude and turn by real functions.

    On a CPU PyTorch's complex exponential needs several times as long.
    """
    return _Powers.apply(log_A_DM, steps_K)


class _Powers(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(log_A_DM: Tensor, steps_K: Tensor) -> Tensor:
        magnitude_DMK = (log_A_DM.real[..., None] * steps_K).exp_()
        angle_DMK = log_A_DM.imag[..., None] * steps_K
        return torch.complex(magnitude_DMK * angle_DMK.cos(), magnitude_DMK * angle_DMK.sin())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output, inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # The derivative of A^t by log A is t A^t: no function is computed again.
        power_DMK, steps_K = ctx.saved_tensors
        return (gradients[0] * power_DMK.conj()) @ steps_K.to(power_DMK.dtype), None


def powers_reference(A_DNN: Tensor, B_DN: Tensor, C_DN: Tensor, length: int) -> Tensor:
    """C A^t B, (D, T), of a real system: one product with the matrix after another."""
    response = []
    for _ in range(length):
        response.append((C_DN * B_DN).sum(-1))
        B_DN = (A_DNN @ B_DN[..., None])[..., 0]
    return torch.stack(response, dim=-1)


def cauchy(
    A_DM: Tensor, P_RDM: Tensor, B_DM: Tensor, cut_C_DM: Tensor, dt_D: Tensor, nodes: int, method: str
) -> Tensor:
    """The first ``nodes`` values (D, nodes) of the kernel of A - P P^*, a diagonal plus low-rank system.

    Its transfer function at the roots of unity z is C (1 - z A_bar)^-1 B_bar = C (a - b (A - P P^*))^-1 B
    with a = (1 - z) / dt and b = (1 - alpha) z + alpha; a diagonal inverse and Woodbury's identity
    leave (1 + R)^2 Cauchy sums, four of them for rank 1 (arXiv 2111.00396, algorithm 1). Written with a and
    b, not with their quotient, no term is infinite at z = -1. A transfer function adds up all powers, so
    ``cut_C_DM`` must be C (1 - A_bar^nodes), which removes powers from ``nodes`` on. ``nodes`` is even.
    """
    turn_K = torch.arange(nodes // 2 + 1, dtype=dt_D.dtype, device=dt_D.device) * (-2 * math.pi / nodes)
    z_K = torch.polar(torch.ones_like(turn_K), turn_K)
    a_DK = (1 - z_K) / dt_D[:, None]
    b_K = (1 - ALPHA[method]) * z_K + ALPHA[method]
    # Conjugates share a denominator: v / (a - b A) + v* / (a - b A*)
    # = (2 Re(v) a - 2 Re(v A*) b) / (a^2 - 2 Re(A) a b + |A|^2 b^2).
    real_DM1, square_DM1 = A_DM.real[..., None], (A_DM.real.square() + A_DM.imag.square())[..., None]
    denominator_DMK = (a_DK * a_DK)[:, None] - real_DM1 * (2 * a_DK * b_K)[:, None] + square_DM1 * (b_K * b_K)
    v_DVM = torch.stack([c * v for c in (cut_C_DM, *P_RDM.conj()) for v in (B_DM, *P_RDM)], dim=1)
    weights_DVM = 2 * torch.cat([v_DVM.real, (v_DVM * A_DM.conj()[:, None]).real], dim=1)
    parts = torch.view_as_real(1 / denominator_DMK).flatten(-2)  # real weights: half the work of complex ones
    sums_DVK = torch.view_as_complex((weights_DVM @ parts).unflatten(-1, (-1, 2)))
    half, rank = v_DVM.shape[1], len(P_RDM)
    values_DVK = sums_DVK[:, :half] * a_DK[:, None] - sums_DVK[:, half:] * b_K
    if rank == 1:
        CB, CP, PB, PP = values_DVK.unbind(1)
        return torch.fft.irfft(CB - b_K * CP * PB / (1 + b_K * PP), n=nodes)
    sums_DKSS = values_DVK.unflatten(1, (1 + rank, 1 + rank)).movedim(-1, 1)
    CB_DK, CP_DK1R = sums_DKSS[..., 0, 0], sums_DKSS[..., :1, 1:]
    PB_DKR1, PP_DKRR = sums_DKSS[..., 1:, :1], sums_DKSS[..., 1:, 1:]
    one_RR = torch.eye(rank, dtype=PP_DKRR.dtype, device=PP_DKRR.device)
    through_DKR1 = torch.linalg.solve(one_RR + b_K[:, None, None] * PP_DKRR, PB_DKR1)
    return torch.fft.irfft(CB_DK - b_K * (CP_DK1R @ through_DKR1)[..., 0, 0], n=nodes)


def fft_size(length: int) -> int:
    """The power of two that holds a linear convolution of two sequences of ``length``."""
    return 2 ** max(1, math.ceil(math.log2(2 * length)))


def fft_flops(length: int) -> int:
    """Operations of ``convolve`` for a channel: two real transforms, 5/2 n log2 n each, and a product (6)."""
    size = fft_size(length)
    return 2 * 5 * size * int(math.log2(size)) // 2 + 6 * (size // 2 + 1)


def convolve(x_BDT: Tensor, kernel_DT: Tensor, backward_DT: Tensor | None = None) -> Tensor:
    """y_t = sum over s <= t of kernel_(t-s) x_s, plus sum over s > t of backward_(s-t-1) x_s."""
    length = x_BDT.shape[-1]
    # Twice the length: a shorter transform would wrap the end around to the beginning.
    size = fft_size(length)
    if backward_DT is not None:
        # What wraps around the beginning of the transform is what comes from the future.
        gap_DS = kernel_DT.new_zeros(kernel_DT.shape[0], size - 2 * length + 1)
        kernel_DT = torch.cat([kernel_DT, gap_DS, backward_DT[:, : length - 1].flip(-1)], dim=-1)
    spectrum = torch.fft.rfft(x_BDT, n=size) * torch.fft.rfft(kernel_DT, n=size)
    return torch.fft.irfft(spectrum, n=size)[..., :length]


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Documents of like length, laid under each other in one padded batch."""

    tokens_I: Tensor
    """Index of each of their tokens among all tokens of the batch."""
    row_I: Tensor
    """Row of the token."""
    position_I: Tensor
    """Its position there."""
    rows: int
    """Number of documents."""
    length: int
    """Length of the padded batch, a power of two."""


def like_lengths(positions_BT: Tensor) -> list[Documents]:
    """Packed documents by their length, rounded up to a power of two: padding at most doubles the work.

    ``positions_BT`` counts from 0 in each document.
    """
    position_I = positions_BT.flatten()
    document_I = (position_I == 0).cumsum(0) - 1
    length_R = torch.bincount(document_I)
    padded_R = 2 ** length_R.double().log2().ceil().long()
    groups = []
    for length in padded_R.unique().tolist():
        chosen_R = padded_R == length
        tokens_I = chosen_R[document_I].nonzero()[:, 0]
        row_R = chosen_R.cumsum(0) - 1
        groups.append(
            Documents(
                tokens_I=tokens_I,
                row_I=row_R[document_I[tokens_I]],
                position_I=position_I[tokens_I],
                rows=int(chosen_R.sum()),
                length=length,
            )
        )
    return groups


def apart(x_BDT: Tensor, groups: list[Documents], mix: Callable[[Tensor], Tensor]) -> Tensor:
    """``mix``, a function of sequences (R, D, S), applied to each document separately."""
    B, D, T = x_BDT.shape
    x_ID = x_BDT.transpose(1, 2).reshape(B * T, D)
    y_ID = torch.zeros_like(x_ID)
    for group in groups:
        padded_RSD = x_ID.new_zeros(group.rows, group.length, D)
        padded_RSD[group.row_I, group.position_I] = x_ID[group.tokens_I]
        mixed_RSD = mix(padded_RSD.transpose(1, 2)).transpose(1, 2)
        y_ID[group.tokens_I] = mixed_RSD[group.row_I, group.position_I]
    return y_ID.view(B, T, D).transpose(1, 2)
