"""Shapes: B batch, T length, H heads, R inputs of a head, P head_dim, N state size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from archbench.architectures.layers.ssm.ssd import ssd
from archbench.architectures.layers.ssm.trapezoid import TrapezoidState, trapezoid, trapezoid_flops
from tests.architectures.costs import arithmetic_of_one_sequence

SHAPES = [
    (1, 1, 1, 1, 1, 1),
    (2, 2, 1, 1, 3, 1),
    (3, 17, 2, 1, 5, 4),
    (1, 40, 3, 2, 2, 3),
    (2, 70, 1, 3, 4, 2),
]


def operands(B: int, T: int, H: int, R: int, P: int, N: int) -> list[Tensor]:
    """x, delta, exponent, weight, B, C and the three parts of the state, in float64 with gradients."""
    generator = torch.Generator().manual_seed(T)
    shapes = [
        (B, T, H, R, P),
        *[(B, T, H)] * 3,
        *[(B, T, H, R, N)] * 2,
        (B, H, P, N),
        (B, H, R, P),
        (B, H, R, N),
    ]
    x, delta, exponent, weight, *others = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
    )
    drawn = [x, delta.exp(), -exponent.abs(), weight.sigmoid(), *others]
    return [tensor.requires_grad_() for tensor in drawn]


def run(tensors: list[Tensor], **settings: Any) -> tuple[Tensor, Tensor]:
    h, x, B = tensors[6:]
    return trapezoid(*tensors[:6], TrapezoidState(h_BHPN=h, x_BHRP=x, B_BHRN=B), **settings)


@pytest.mark.parametrize("path", ["reference", "torch"])
def test_by_hand(path: str) -> None:
    """The decay halves what is there. A quarter of each input enters at once, the rest one step later."""
    x = torch.tensor([8.0, 4.0, 2.0]).view(1, 3, 1, 1, 1)
    ones = torch.ones(1, 3, 1)
    vectors = ones[..., None, None]
    state = TrapezoidState(
        h_BHPN=torch.full((1, 1, 1, 1), 10.0),
        x_BHRP=torch.full((1, 1, 1, 1), 4.0),
        B_BHRN=torch.ones(1, 1, 1, 1),
    )
    y, last = trapezoid(
        x, ones, 0.5 * ones.log() - 0.6931471805599453, 0.25 * ones, vectors, vectors, state, path=path
    )
    # (10 + 3) / 2 + 2, (8.5 + 6) / 2 + 1, (8.25 + 3) / 2 + 0.5
    assert y.flatten().tolist() == pytest.approx([8.5, 8.25, 6.125])
    assert last.item() == pytest.approx(6.125)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("chunk", [1, 4, 64])
@pytest.mark.parametrize("shape", SHAPES)
def test_chunks_are_the_recurrence(shape: tuple[int, ...], chunk: int, packed: bool) -> None:
    """Outputs, last state, and the gradient of both with respect to every operand."""
    tensors = operands(*shape)
    reset_BT = torch.rand(shape[:2], generator=torch.Generator().manual_seed(0)) < 0.2 if packed else None
    results = {}
    for path in ("torch", "reference"):
        y, last = run(tensors, chunk=chunk, path=path, reset_BT=reset_BT)
        loss = (y * y.detach().cos()).sum() + last.square().sum()
        results[path] = [y, last, *torch.autograd.grad(loss, tensors)]
    for ours, expected in zip(results["torch"], results["reference"], strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("path", ["reference", "torch"])
def test_a_weight_of_one_is_the_recurrence_of_mamba2(path: str) -> None:
    x, delta, _, weight, B, C, h, last_x, last_B = operands(2, 70, 3, 1, 4, 5)
    A = torch.tensor([-0.1, -1.0, -3.0], dtype=torch.float64)
    y, last = run([x, delta, delta * A, torch.ones_like(weight), B, C, h, last_x, last_B], path=path)
    expected_y, expected = ssd(x[..., 0, :], delta, A, B[..., 0, :], C[..., 0, :], h, path="reference")
    torch.testing.assert_close(y[..., 0, :], expected_y, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(last, expected, atol=1e-12, rtol=1e-12)


def test_a_weight_of_one_half_integrates_with_an_error_of_second_order() -> None:
    """``h' = -h + cos t`` from h(0) = 0: half the step, a quarter of the error; half with Euler's rule."""
    errors: dict[float, list[float]] = {0.5: [], 1.0: []}
    for weight, found in errors.items():
        for steps in (50, 100):
            t_T = torch.linspace(0, 2, steps + 1, dtype=torch.float64)
            ones = torch.ones(1, steps, 1, dtype=torch.float64)
            step = ones * 2 / steps
            vectors = ones[..., None, None]
            first = torch.ones(1, 1, 1, 1, dtype=torch.float64)
            state = TrapezoidState(h_BHPN=0 * first, x_BHRP=first, B_BHRN=first)
            x = t_T[1:].cos().view(1, -1, 1, 1, 1)
            y, _ = trapezoid(x, step, -step, weight * ones, vectors, vectors, state)
            exact = (t_T[-1].cos() + t_T[-1].sin() - (-t_T[-1]).exp()) / 2
            found.append(abs(y.flatten()[-1] - exact).item())
    assert errors[0.5][0] / errors[0.5][1] == pytest.approx(4, rel=0.05)
    assert errors[1.0][0] / errors[1.0][1] == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_any_decay_in_float32(scale: float) -> None:
    tensors = operands(2, 150, 2, 2, 4, 6)
    tensors[2] = (tensors[2] * scale).detach().requires_grad_()
    single = [tensor.detach().float().requires_grad_() for tensor in tensors]
    ours, expected = run(single), run(tensors, path="reference")
    readout = expected[0].detach().cos()
    gradients = (
        torch.autograd.grad((ours[0] * readout.float()).sum(), single),
        torch.autograd.grad((expected[0] * readout).sum(), tensors),
    )
    for found, exact in zip([*ours, *gradients[0]], [*expected, *gradients[1]], strict=True):
        largest = exact.abs().max().clamp_min(1e-30)
        torch.testing.assert_close(found.double() / largest, exact / largest, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("T", "H", "R", "P", "N"), [(1, 1, 1, 1, 1), (5, 3, 2, 4, 2), (12, 2, 1, 8, 16)])
def test_flops_are_the_arithmetic_that_runs(T: int, H: int, R: int, P: int, N: int) -> None:
    """And the outer products of the input before the first step."""
    drawn = {batch: [x.detach() for x in operands(batch, T, H, R, P, N)] for batch in (1, 2)}
    counted = arithmetic_of_one_sequence(lambda batch: run(drawn[batch], path="reference"))
    assert trapezoid_flops(T, H, R, P, N) + 2 * H * R * P * N == counted
