"""The matrix memory of xLSTM against its definition, without the scale that keeps it in range.

Shapes: B batch, T length, H heads, K key width, V value width.
"""

import pytest
import torch
from torch import Tensor

from archbench.architectures.layers.linear_attention.mlstm import mlstm, mlstm_flops
from tests.architectures.costs import arithmetic_of_one_sequence

EPS = 1e-3


def inputs(length: int) -> tuple[Tensor, ...]:
    """Queries, keys, values and the logarithms of the gates."""
    generator = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(2, length, 3, width, generator=generator).double() for width in (4, 4, 5))
    log_input, forget = (3 * torch.randn(2, length, 3, generator=generator).double() for _ in range(2))
    return q, k, v, log_input, torch.nn.functional.logsigmoid(forget)


def empty(scale: float = 0.0) -> tuple[Tensor, Tensor]:
    return torch.zeros(2, 3, 4, 6).double(), torch.full((2, 3), scale).double()


def definition(q: Tensor, k: Tensor, v: Tensor, log_input: Tensor, log_forget: Tensor) -> Tensor:
    """``C_t = f C + i k v^T``, ``n_t = f n + i k``, ``y = C^T q / (max(|n q|, 1) + eps exp(m))``."""
    memory = torch.zeros(2, 3, 4, 5).double()
    normaliser, m, found = torch.zeros(2, 3, 4).double(), torch.zeros(2, 3).double(), []
    for t in range(q.shape[1]):
        f, i, key = log_forget[:, t].exp()[..., None], log_input[:, t].exp()[..., None], k[:, t]
        memory = f[..., None] * memory + i[..., None] * key[..., None] * v[:, t, :, None]
        normaliser = f * normaliser + i * key
        m = torch.maximum(log_forget[:, t] + m, log_input[:, t])
        query = q[:, t] / 2.0  # the root of the key width
        read = torch.einsum("bhkv,bhk->bhv", memory, query)
        size = (normaliser * query).sum(-1).abs().clamp_min(1.0) + EPS * m.exp()
        found.append(read / size[..., None])
    return torch.stack(found, dim=1)


@pytest.mark.parametrize("path", ["torch", "reference"])
@pytest.mark.parametrize("length", [1, 7, 64, 150])
def test_is_the_definition(path: str, length: int) -> None:
    found = mlstm(*inputs(length), *empty(), eps=EPS, path=path)[0]
    torch.testing.assert_close(found, definition(*inputs(length)), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("path", ["torch", "reference"])
def test_gates_out_of_the_range_of_exponentials(path: str) -> None:
    """A value stored with exp(1000), beside nothing, is recalled whatever the key."""
    q, k, v, _, log_forget = inputs(70)
    log_input = torch.full((2, 70, 3), -torch.inf).double()
    log_input[:, 65] = 1000.0
    found, memory, scale = mlstm(q, k, v, log_input, log_forget, *empty(), eps=1e-9, path=path)
    assert not found[:, :65].any()
    sign = ((k[:, 65, None] * q[:, 65:]).sum(-1, keepdim=True)).sign()
    torch.testing.assert_close(found[:, 65:], v[:, 65:66] * sign, atol=1e-5, rtol=1e-5)
    assert memory.isfinite().all()
    assert scale.isfinite().all()


def test_gradients_are_finite_where_nothing_is_stored() -> None:
    tensors = [x.requires_grad_() for x in inputs(70)]
    starts = torch.zeros(2, 70, dtype=torch.bool)
    starts[:, [0, 3, 66]] = True
    log_input = tensors[3].masked_fill(torch.arange(70)[:, None] > 50, -torch.inf)
    found, memory, scale = mlstm(*tensors[:3], log_input, tensors[4], *empty(), starts_BT=starts)
    gradients = torch.autograd.grad(found.square().sum() + memory.sum() + scale.sum(), tensors)
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("length", [1, 9])
def test_flops_are_those_of_the_recurrence(length: int) -> None:
    """And four of each head: three for m, and the one that is added to the divisor."""

    def run(batch: int) -> object:
        tensors = [x[:1].expand(batch, *x.shape[1:]) for x in (*inputs(length), *empty())]
        return mlstm(*tensors, path="reference")

    counted = mlstm_flops(length, 3, 4, 5) + 4 * length * 3
    assert arithmetic_of_one_sequence(run) == counted
