"""Shapes: B batch, T length, H heads, K key width, V value width."""

import math

import pytest
import torch

from archbench.architectures.layers.linear_attention.gla import (
    gated_linear_attention,
    gated_linear_attention_flops,
)
from archbench.architectures.layers.ssm.selective_scan import selective_scan
from tests.architectures.costs import arithmetic_of_one_sequence


def operands(B: int, T: int, H: int, K: int, V: int, *, rate: float = 1.0) -> list[torch.Tensor]:
    """q, k, v, log decay and the first memory, in float64, all asking for gradients."""
    generator = torch.Generator().manual_seed(T)
    shapes = [(B, T, H, K), (B, T, H, K), (B, T, H, V), (B, T, H, K), (B, H, K, V)]
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    drawn[3] = -rate * drawn[3].abs()
    return [tensor.requires_grad_() for tensor in drawn]


SHAPES = [(1, 1, 1, 1, 1), (2, 2, 1, 3, 1), (3, 17, 2, 5, 4), (1, 40, 3, 2, 7), (1, 129, 1, 4, 3)]


@pytest.mark.parametrize("path", ["reference", "torch"])
def test_by_hand(path):
    """K = 4, so that queries are halved; the first channel halves at each step, the second is kept."""
    k = torch.tensor([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]).view(1, 3, 1, 4)
    v = torch.tensor([8.0, 2.0, 5.0]).view(1, 3, 1, 1)
    decay = torch.tensor([0.5, 1.0, 1.0, 0.1]).log().expand(1, 3, 1, 4)
    y, last = gated_linear_attention(torch.full_like(k, 2.0), k, v, decay, path=path)
    assert y.flatten().tolist() == pytest.approx([16.0, 14.0, 16.0])
    assert last.flatten().tolist() == pytest.approx([3.0, 8.0, 0.0, 5.0])


@pytest.mark.parametrize("chunk", [1, 4, 16, 64])
@pytest.mark.parametrize("shape", SHAPES)
def test_chunks_are_the_recurrence(shape, chunk):
    """Outputs, last memory, and the gradient of both with respect to every operand."""
    tensors = operands(*shape)
    results = {}
    for path in ("torch", "reference"):
        y, last = gated_linear_attention(*tensors, path=path, chunk=chunk)
        loss = (y * y.detach().cos()).sum() + last.square().sum()
        results[path] = [y, last, *torch.autograd.grad(loss, tensors)]
    for found, expected in zip(results["torch"], results["reference"], strict=True):
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("path", ["reference", "torch"])
def test_a_constant_decay_is_a_state_space_model(path):
    """One head, and the scan of Mamba with steps of one: keys are its B, queries its C, values its inputs."""
    q, k, v, decay, memory = operands(2, 37, 1, 5, 3)
    rate_K = decay[0, 0, 0]
    y, last = gated_linear_attention(q, k, v, rate_K.expand_as(decay), memory, path=path)
    expected, state_BVK = selective_scan(
        v[:, :, 0], torch.ones_like(v[:, :, 0]), rate_K.expand(3, 5), k[:, :, 0], q[:, :, 0], memory[:, 0].mT
    )
    torch.testing.assert_close(y[:, :, 0] * 5**0.5, expected, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(last[:, 0], state_BVK.mT, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("path", ["reference", "torch"])
def test_gradient_is_numerically_right(path):
    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return gated_linear_attention(*tensors, path=path, chunk=4)

    assert torch.autograd.gradcheck(run, operands(2, 6, 1, 2, 2))


@pytest.mark.parametrize("path", ["torch", "reference"])
@pytest.mark.parametrize("cut", [1, 7, 16])
def test_pieces_make_the_whole(path, cut):
    *tensors, initial = operands(3, 17, 2, 5, 4)
    whole, last = gated_linear_attention(*tensors, initial, path=path, chunk=4)
    first, middle = gated_linear_attention(*(x[:, :cut] for x in tensors), initial, path=path, chunk=4)
    second, end = gated_linear_attention(*(x[:, cut:] for x in tensors), middle, path=path, chunk=4)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole, atol=1e-12, rtol=0)
    torch.testing.assert_close(end, last, atol=1e-12, rtol=0)


@pytest.mark.parametrize("path", ["torch", "reference"])
def test_minus_infinity_forgets_everything(path):
    q, k, v, decay, memory = (tensor.detach() for tensor in operands(2, 20, 2, 3, 4))
    starts = [7, 8, 16]
    decay[:, starts] = -math.inf
    decay.requires_grad_()
    y, last = gated_linear_attention(q, k, v, decay, memory, path=path, chunk=8)
    pieces = [
        gated_linear_attention(
            *(x[:, start:end] for x in (q, k, v)),
            decay[:, start:end].clamp(min=-100),
            memory if start == 0 else None,
            path="reference",
        )
        for start, end in zip([0, *starts], [*starts, 20], strict=True)
    ]
    torch.testing.assert_close(y, torch.cat([piece[0] for piece in pieces], dim=1), atol=1e-12, rtol=0)
    torch.testing.assert_close(last, pieces[-1][1], atol=1e-12, rtol=0)
    (gradient,) = torch.autograd.grad(y.square().sum() + last.sum(), decay)
    assert gradient.isfinite().all()
    assert not gradient[:, starts].any()


@pytest.mark.parametrize("rate", [1e-3, 1.0, 30.0, 1e4])
def test_gradients_of_any_decay_in_float32(rate):
    """Beside those of the recurrence in float64, each in units of its largest."""
    tensors = operands(2, 150, 2, 8, 8, rate=rate)
    single = [tensor.detach().float().requires_grad_() for tensor in tensors]
    y_BTHV, _ = gated_linear_attention(*single)
    expected_BTHV, _ = gated_linear_attention(*tensors, path="reference")
    found = torch.autograd.grad((y_BTHV * expected_BTHV.detach().float().cos()).sum(), single)
    expected = torch.autograd.grad((expected_BTHV * expected_BTHV.detach().cos()).sum(), tensors)
    for ours, exact in zip(found, expected, strict=True):
        scale = exact.abs().max().clamp_min(1e-30)
        torch.testing.assert_close(ours.double() / scale, exact / scale, atol=1e-5, rtol=0)


@pytest.mark.parametrize("rate", [1e-3, 1.0, 30.0, 1e4])
def test_any_decay_in_float32(rate):
    """Beside the recurrence in float64; a quotient of cumulative products would overflow."""
    tensors = [tensor.detach() for tensor in operands(2, 150, 2, 8, 8, rate=rate)]
    for found, expected in zip(
        gated_linear_attention(*(tensor.float() for tensor in tensors)),
        gated_linear_attention(*tensors, path="reference"),
        strict=True,
    ):
        scale = expected.abs().max()
        torch.testing.assert_close(found.double() / scale, expected / scale, atol=2e-6, rtol=0)


def test_channels_of_every_speed_in_float32():
    """One channel forgets at once, its neighbour never: each keeps its digits."""
    q, k, v, decay, memory = (tensor.detach() for tensor in operands(1, 200, 1, 4, 4))
    decay = decay * torch.tensor([0.0, 1e-4, 1.0, 1e5], dtype=torch.float64)
    found, _ = gated_linear_attention(*(x.float() for x in (q, k, v, decay, memory)))
    expected, _ = gated_linear_attention(q, k, v, decay, memory, path="reference")
    scale = expected.abs().max()
    torch.testing.assert_close(found.double() / scale, expected / scale, atol=2e-6, rtol=0)


@pytest.mark.parametrize(("T", "H", "K", "V"), [(1, 1, 1, 1), (5, 3, 4, 2), (12, 2, 8, 16)])
def test_flops_are_the_arithmetic_that_runs(T, H, K, V):
    drawn = {batch: [x.detach() for x in operands(batch, T, H, K, V)] for batch in (1, 2)}
    measured = arithmetic_of_one_sequence(
        lambda batch: gated_linear_attention(*drawn[batch], path="reference")
    )
    assert gated_linear_attention_flops(T, H, K, V) == measured
