"""Runs tokens through the experts that were chosen for them: sorted, in one of multiple equivalent ways.

Shapes: N tokens, K choices of a token, D d_model, F hidden width of an expert,
X experts, M pairs of a token and an expert, sorted by expert, C the most tokens
of any expert.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from archbench.architectures.layers.activations import Activation

Apply = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Gives the product of inputs with the matrices of experts, plus the biases."""


class Weights(NamedTuple):
    """The matrices of all experts of a layer, and their biases where they have any."""

    gate_XFD: Tensor | None
    up_XFD: Tensor
    down_XDF: Tensor
    activation: Activation
    gate_bias_XF: Tensor | None = None
    up_bias_XF: Tensor | None = None
    down_bias_XD: Tensor | None = None

    def hidden(self, x: Tensor, apply: Apply) -> Tensor:
        """Return the hidden states, by ``apply(x, matrices, biases)``."""
        up = apply(x, self.up_XFD, self.up_bias_XF)
        if self.gate_XFD is None:
            return self.activation(up)
        return self.activation.times(apply(x, self.gate_XFD, self.gate_bias_XF), up)

    def by_expert(self) -> list[Weights]:
        """Return the matrices and biases of each expert."""
        count = len(self.up_XFD)
        parts: list[Sequence[Any]] = [x.unbind(0) if isinstance(x, Tensor) else [x] * count for x in self]
        return [Weights(*parts_of_expert) for parts_of_expert in zip(*parts, strict=True)]


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
        expert_NK: indices of the experts.
        kept_NK: False for pairs to leave out; None to use all pairs.
        run: the outputs (M, D) of inputs (M, D) sorted by expert, given the counts of each expert.
    """
    N, K = expert_NK.shape
    if kept_NK is None:
        order_M = expert_NK.flatten().argsort(stable=True)
    else:
        # What is left out comes after all experts, and is cut off.
        left_out = expert_NK.masked_fill(~kept_NK, num_experts)
        order_M = left_out.flatten().argsort(stable=True)[: int(kept_NK.sum())]
    counts_X = count_visits(expert_NK.flatten()[order_M], num_experts)
    # Not x[index]: on a GPU its gradient sorts.
    result_MD = run(x_ND.index_select(0, order_M // K), counts_X)
    if kept_NK is None:
        back = torch.empty_like(order_M).scatter_(0, order_M, torch.arange(N * K, device=order_M.device))
        return (result_MD.index_select(0, back).unflatten(0, (-1, K)) * gate_NK[..., None]).sum(1)
    gated_MD = result_MD * gate_NK.flatten().index_select(0, order_M)[:, None]
    return gated_MD.new_zeros(x_ND.shape).index_add(0, order_M // K, gated_MD)


def count_visits(expert_M: Tensor, num_experts: int, valid_M: Tensor | None = None) -> Tensor:
    """Return the number of valid pairs of each expert. On a GPU ``torch.bincount`` would make the host
    wait."""
    one_M = torch.ones_like(expert_M) if valid_M is None else valid_M.to(expert_M.dtype)
    return expert_M.new_zeros(num_experts).scatter_add_(0, expert_M, one_M)


ROWS = 64
"""On a CPU in bfloat16 an expert gets a multiple of this many rows, unless it has a few. Row counts differ in
each step, and oneDNN generates code for every shape of a product, which needs longer than the product."""
FEW = 16
"""Fewer rows, as in decoding, have few shapes, and would become many times as many."""


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the precision of products with such an input: that of autocast where it is on."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def run_loop(x_MD: Tensor, counts_X: Tensor, weights: Weights) -> Tensor:
    """Run one expert after another."""
    results = []
    rows = ROWS if x_MD.device.type == "cpu" and product_dtype(x_MD) == torch.bfloat16 else 1
    for x_ID, expert in zip(x_MD.split(counts_X.tolist()), weights.by_expert(), strict=True):
        count = len(x_ID)
        if rows > 1 and count >= FEW:
            # Never by zero rows: torch.compile would compile again for a step without padding.
            x_ID = F.pad(x_ID, (0, 0, 0, rows - count % rows))
        y_ID = F.linear(expert.hidden(x_ID, F.linear), expert.down_XDF, expert.down_bias_XD)
        results.append(y_ID[:count])
    return torch.cat(results)


def run_grouped(x_MD: Tensor, counts_X: Tensor, weights: Weights) -> Tensor:
    """Run one product over groups of rows, each with a separate matrix, without synchronization."""
    ends_X = counts_X.cumsum(0).to(torch.int32)
    dtype = product_dtype(x_MD)  # autocast passes over this operation
    x_MD = x_MD.to(dtype)

    def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = F.grouped_mm(x, weight.to(dtype).mT, offs=ends_X)
        if bias is None:
            return y
        return y + bias.to(dtype).repeat_interleave(counts_X, dim=0, output_size=len(x))

    return product(weights.hidden(x_MD, product), weights.down_XDF, weights.down_bias_XD)


def run_padded(x_MD: Tensor, counts_X: Tensor, weights: Weights) -> Tensor:
    """Run all experts in one product; each has as many slots as the fullest needs."""
    X, M, C = len(counts_X), len(x_MD), int(counts_X.max())
    start_X = counts_X.cumsum(0) - counts_X
    expert_M = torch.repeat_interleave(torch.arange(X, device=x_MD.device), counts_X, output_size=M)
    slot_M = expert_M * C + torch.arange(M, device=x_MD.device) - start_X[expert_M]
    x_XCD = x_MD.new_zeros(X * C, x_MD.shape[1]).index_copy(0, slot_M, x_MD).unflatten(0, (X, C))

    def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = x @ weight.mT
        return y if bias is None else y + bias[:, None].to(y.dtype)

    y_XCD = product(weights.hidden(x_XCD, product), weights.down_XDF, weights.down_bias_XD)
    return y_XCD.flatten(0, 1)[slot_M]


def run_all(x_ND: Tensor, expert_NK: Tensor, gate_NK: Tensor, kept_NK: Tensor | None, w: Weights) -> Tensor:
    """Compute ``dispatch`` by its definition: every expert on every token, times a gate that is mostly
    zero."""
    gate_NK = gate_NK if kept_NK is None else gate_NK * kept_NK
    gate_NX = gate_NK.new_zeros(len(x_ND), len(w.up_XFD)).scatter_add(-1, expert_NK, gate_NK)

    def product(x_ND: Tensor, weight_XFD: Tensor, bias_XF: Tensor | None) -> Tensor:
        y_NXF = torch.einsum("nd,xfd->nxf", x_ND, weight_XFD)
        return y_NXF if bias_XF is None else y_NXF + bias_XF.to(y_NXF.dtype)

    hidden_NXF = w.hidden(x_ND, product)
    gate_NX = gate_NX.to(hidden_NXF.dtype)
    y_ND = torch.einsum("nxf,xdf,nx->nd", hidden_NXF, w.down_XDF, gate_NX)
    return y_ND if w.down_bias_XD is None else y_ND + gate_NX @ w.down_bias_XD.to(gate_NX.dtype)


def grouped_product(device: str, dtype: torch.dtype, d_model: int, d_ff: int) -> bool:
    """Return True where PyTorch has the grouped product for these: bfloat16 on a GPU, else no float64; rows
    of multiples of 16 bytes."""
    aligned = all(width * dtype.itemsize % 16 == 0 for width in (d_model, d_ff))
    on_cpu = (torch.float32, torch.bfloat16, torch.float16)
    return aligned and dtype in ((torch.bfloat16,) if device == "cuda" else on_cpu)
