"""Runs tokens through the experts that were chosen for them: sorted, in one of several equal ways.

Shapes: N tokens, K choices of a token, D d_model, F hidden width of an expert,
X experts, M pairs of a token and an expert, sorted by expert, C the most tokens
of any expert.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from architectures.kernels.pointwise import Activation


class Weights(NamedTuple):
    """The matrices of all experts of a layer."""

    gate_XFD: Tensor | None
    up_XFD: Tensor
    down_XDF: Tensor
    activation: Activation


Run = Callable[[Tensor, Tensor, Weights], Tensor]
"""Gives the outputs (M, D) of inputs (M, D) sorted by expert, of which each has ``counts_X``."""


def dispatch(
    x_ND: Tensor,
    expert_NK: Tensor,
    gate_NK: Tensor,
    kept_NK: Tensor | None,
    *,
    num_experts: int,
    run: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Return the sum (N, D) over the experts of each token of gate times output.

    Args:
        expert_NK: which experts.
        kept_NK: False for pairs to leave out; None where there are none.
        run: the outputs (M, D) of inputs (M, D) sorted by expert, given how many are each expert's.
    """
    N, K = expert_NK.shape
    if kept_NK is None:
        order_M = expert_NK.flatten().argsort(stable=True)
    else:
        # What is left out comes after all experts, and is cut off.
        left_out = expert_NK.masked_fill(~kept_NK, num_experts)
        order_M = left_out.flatten().argsort(stable=True)[: int(kept_NK.sum())]
    counts_X = count_visits(expert_NK.flatten()[order_M], num_experts)
    result_MD = run(x_ND[order_M // K], counts_X)
    if kept_NK is None:
        back = torch.empty_like(order_M).scatter_(0, order_M, torch.arange(N * K, device=order_M.device))
        return (result_MD[back].unflatten(0, (-1, K)) * gate_NK[..., None]).sum(1)
    gated_MD = result_MD * gate_NK.flatten()[order_M, None]
    return gated_MD.new_zeros(x_ND.shape).index_add(0, order_M // K, gated_MD)


def count_visits(expert_M: Tensor, num_experts: int, valid_M: Tensor | None = None) -> Tensor:
    """Return the number of valid pairs of each expert. On a GPU ``torch.bincount`` would make the host
    wait."""
    one_M = torch.ones_like(expert_M) if valid_M is None else valid_M.to(expert_M.dtype)
    return expert_M.new_zeros(num_experts).scatter_add_(0, expert_M, one_M)


def run_loop(x_MD: Tensor, counts_X: Tensor, weights: Weights) -> Tensor:
    """Run one expert after another."""
    gates = [None] * len(counts_X) if weights.gate_XFD is None else weights.gate_XFD.unbind(0)
    stacks = zip(gates, weights.up_XFD.unbind(0), weights.down_XDF.unbind(0), strict=True)
    results = []
    for x_ID, (gate_FD, up_FD, down_DF) in zip(x_MD.split(counts_X.tolist()), stacks, strict=True):
        if gate_FD is None:
            hidden_IF = weights.activation(F.linear(x_ID, up_FD))
        else:
            hidden_IF = weights.activation.times(F.linear(x_ID, gate_FD), F.linear(x_ID, up_FD))
        results.append(F.linear(hidden_IF, down_DF))
    return torch.cat(results)


def run_grouped(x_MD: Tensor, counts_X: Tensor, weights: Weights) -> Tensor:
    """Run one product over groups of rows, each with its own matrix; the host waits for nothing."""
    ends_X = counts_X.cumsum(0).to(torch.int32)
    device = x_MD.device.type
    # Autocast passes over this operation.
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x_MD.dtype
    x_MD = x_MD.to(dtype)

    def product(x: Tensor, weight: Tensor) -> Tensor:
        return F.grouped_mm(x, weight.to(dtype).mT, offs=ends_X)

    hidden_MF = product(x_MD, weights.up_XFD)
    if weights.gate_XFD is None:
        hidden_MF = weights.activation(hidden_MF)
    else:
        hidden_MF = weights.activation.times(product(x_MD, weights.gate_XFD), hidden_MF)
    return product(hidden_MF, weights.down_XDF)


def run_padded(x_MD: Tensor, counts_X: Tensor, weights: Weights) -> Tensor:
    """Run all experts in one product; each has as many slots as the fullest needs."""
    X, M, C = len(counts_X), len(x_MD), int(counts_X.max())
    first_X = counts_X.cumsum(0) - counts_X
    expert_M = torch.repeat_interleave(torch.arange(X, device=x_MD.device), counts_X, output_size=M)
    place_M = expert_M * C + torch.arange(M, device=x_MD.device) - first_X[expert_M]
    x_XCD = x_MD.new_zeros(X * C, x_MD.shape[1]).index_copy(0, place_M, x_MD).unflatten(0, (X, C))
    hidden_XCF = x_XCD @ weights.up_XFD.mT
    if weights.gate_XFD is None:
        hidden_XCF = weights.activation(hidden_XCF)
    else:
        hidden_XCF = weights.activation.times(x_XCD @ weights.gate_XFD.mT, hidden_XCF)
    return (hidden_XCF @ weights.down_XDF.mT).flatten(0, 1)[place_M]


def run_all(x_ND: Tensor, expert_NK: Tensor, gate_NK: Tensor, kept_NK: Tensor | None, w: Weights) -> Tensor:
    """Compute ``dispatch`` by its definition: every expert on every token, times a gate that is mostly
    zero."""
    gate_NK = gate_NK if kept_NK is None else gate_NK * kept_NK
    gate_NX = gate_NK.new_zeros(len(x_ND), len(w.up_XFD)).scatter_add(-1, expert_NK, gate_NK)
    hidden_NXF = torch.einsum("nd,xfd->nxf", x_ND, w.up_XFD)
    if w.gate_XFD is None:
        hidden_NXF = w.activation(hidden_NXF)
    else:
        hidden_NXF = w.activation.times(torch.einsum("nd,xfd->nxf", x_ND, w.gate_XFD), hidden_NXF)
    return torch.einsum("nxf,xdf,nx->nd", hidden_NXF, w.down_XDF, gate_NX.to(hidden_NXF.dtype))


def grouped_product(dtype: torch.dtype, d_model: int, d_ff: int) -> bool:
    """Return True where PyTorch has the grouped product for these: no float64, and rows of multiples of 16
    bytes."""
    aligned = all(width * dtype.itemsize % 16 == 0 for width in (d_model, d_ff))
    return aligned and dtype in (torch.float32, torch.bfloat16, torch.float16)
