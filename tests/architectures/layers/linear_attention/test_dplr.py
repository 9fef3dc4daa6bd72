"""Shapes: B batch, T length, H heads, K key width, V value width."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from archbench.architectures.layers.linear_attention.delta_rule import delta_rule
from archbench.architectures.layers.linear_attention.dplr import dplr, dplr_flops
from archbench.architectures.layers.linear_attention.gla import gated_linear_attention
from tests.architectures.costs import arithmetic_of_one_sequence

SHAPES = [(1, 1, 1, 1, 1), (2, 2, 1, 3, 1), (3, 17, 2, 5, 4), (1, 40, 3, 2, 7), (1, 129, 1, 4, 3)]


def operands(B: int, T: int, H: int, K: int, V: int, *, rate: float = 1.0) -> list[Tensor]:
    """q, k, v, a, b, log decay and the first memory, in float64, all asking for gradients."""
    generator = torch.Generator().manual_seed(T)
    shapes = [(B, T, H, K), (B, T, H, K), (B, T, H, V), *[(B, T, H, K)] * 3, (B, H, K, V)]
    q, k, v, a, b, decay, memory = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
    )
    a = F.normalize(a, dim=-1)
    drawn = [q, k, v, -a, a * b.sigmoid(), -rate * decay.abs(), memory]
    return [tensor.requires_grad_() for tensor in drawn]


@pytest.mark.parametrize("path", ["reference", "torch"])
def test_by_hand(path: str) -> None:
    """The second step halves the first entry, and moves what the first key recalls to the second entry."""
    q, k = torch.tensor([[1.0, 1.0], [1.0, 10.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    a, b = torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    decay = torch.tensor([[1.0, 1.0], [0.5, 1.0]]).log()
    v = torch.tensor([8.0, 3.0]).view(1, 2, 1, 1)
    q, k, a, b, decay = (x.view(1, 2, 1, 2) for x in (q, k, a, b, decay))
    y, last = dplr(q, k, v, a, b, decay, path=path)
    assert y.flatten().tolist() == pytest.approx([8.0, 87.0])  # memory: (8, 0); (4 + 3, 8)
    assert last.flatten().tolist() == pytest.approx([7.0, 8.0])


@pytest.mark.parametrize("chunk", [1, 4, 16, 64])
@pytest.mark.parametrize("shape", SHAPES)
def test_chunks_are_the_recurrence(shape: tuple[int, ...], chunk: int) -> None:
    """Outputs, last memory, and the gradient of both with respect to every operand."""
    tensors = operands(*shape)
    results = {}
    for path in ("torch", "reference"):
        y, last = dplr(*tensors, path=path, chunk=chunk)
        loss = (y * y.detach().cos()).sum() + last.square().sum()
        results[path] = [y, last, *torch.autograd.grad(loss, tensors)]
    for ours, expected in zip(results["torch"], results["reference"], strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("path", ["reference", "torch"])
def test_gradient_is_numerically_right(path: str) -> None:
    def run(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return dplr(*tensors, path=path, chunk=2)

    assert torch.autograd.gradcheck(run, operands(2, 5, 1, 2, 2))


@pytest.mark.parametrize("path", ["torch", "reference"])
@pytest.mark.parametrize("cut", [1, 7, 16])
def test_pieces_make_the_whole(path: str, cut: int) -> None:
    *tensors, initial = operands(3, 17, 2, 5, 4)
    whole, last = dplr(*tensors, initial, path=path, chunk=4)
    first, middle = dplr(*(x[:, :cut] for x in tensors), initial, path=path, chunk=4)
    second, end = dplr(*(x[:, cut:] for x in tensors), middle, path=path, chunk=4)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole, atol=1e-12, rtol=0)
    torch.testing.assert_close(end, last, atol=1e-12, rtol=0)


def test_a_diagonal_transition_is_gated_linear_attention() -> None:
    q, k, v, a, b, decay, memory = operands(2, 70, 2, 4, 3)
    ours = dplr(q / 2.0, k, v, torch.zeros_like(a), b, decay, memory)
    for found, expected in zip(ours, gated_linear_attention(q, k, v, decay, memory), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)


def test_a_reflection_of_the_key_is_the_gated_delta_rule() -> None:
    """``(I - beta k k^T) a`` is ``a`` on the diagonal, less ``beta k (a k)^T``."""
    q, k, v, _, b, decay, memory = operands(2, 70, 2, 4, 3)
    k, beta, decay = F.normalize(k, dim=-1), b[..., :1].abs(), decay[..., :1]
    ours = dplr(q / 2.0, beta * k, v, decay.exp() * k, -beta * k, decay.expand_as(k), memory)
    expected = delta_rule(q, k, v, beta[..., 0], decay[..., 0], memory)
    for found, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(found, other, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("path", ["torch", "reference"])
def test_minus_infinity_forgets_everything(path: str) -> None:
    q, k, v, a, b, decay, memory = (tensor.detach() for tensor in operands(2, 20, 2, 3, 4))
    starts = [7, 8, 16]
    decay[:, starts], a[:, starts] = -math.inf, 0.0
    decay.requires_grad_()
    y, last = dplr(q, k, v, a, b, decay, memory, path=path, chunk=8)
    spans = zip([0, *starts], [*starts, 20], strict=True)
    pieces = [
        dplr(
            *(x[:, start:end] for x in (q, k, v, a, b)),
            decay[:, start:end].clamp(min=-100),
            memory if start == 0 else None,
            path="reference",
        )
        for start, end in spans
    ]
    torch.testing.assert_close(y, torch.cat([piece[0] for piece in pieces], dim=1), atol=1e-12, rtol=0)
    torch.testing.assert_close(last, pieces[-1][1], atol=1e-12, rtol=0)
    (gradient,) = torch.autograd.grad(y.square().sum() + last.sum(), decay)
    assert gradient.isfinite().all()
    assert not gradient[:, starts].any()


@pytest.mark.parametrize("rate", [1e-3, 1.0, 30.0, 1e4])
def test_any_decay_in_float32(rate: float) -> None:
    """Values and gradients next to those of the recurrence in float64, in units of the largest; a quotient of
    cumulative products would overflow."""
    tensors = operands(2, 150, 2, 8, 8, rate=rate)
    single = [tensor.detach().float().requires_grad_() for tensor in tensors]
    ours, expected = dplr(*single), dplr(*tensors, path="reference")
    readout = expected[0].detach().cos()
    gradients = (
        torch.autograd.grad((ours[0] * readout.float()).sum(), single),
        torch.autograd.grad((expected[0] * readout).sum(), tensors),
    )
    for found, exact in zip([*ours, *gradients[0]], [*expected, *gradients[1]], strict=True):
        scale = exact.abs().max().clamp_min(1e-30)
        torch.testing.assert_close(found.double() / scale, exact / scale, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("T", "H", "K", "V"), [(1, 1, 1, 1), (5, 3, 4, 2), (12, 2, 8, 16)])
def test_flops_are_the_arithmetic_that_runs(T: int, H: int, K: int, V: int) -> None:
    drawn = {batch: [x.detach() for x in operands(batch, T, H, K, V)] for batch in (1, 2)}

    def run(batch: int) -> object:
        return dplr(*drawn[batch], path="reference")

    assert dplr_flops(T, H, K, V) == arithmetic_of_one_sequence(run)
