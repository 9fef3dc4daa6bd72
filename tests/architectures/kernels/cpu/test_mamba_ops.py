"""What surrounds the scans, in C++, against plain PyTorch in float64.

Shapes: B batch, T length, C channels, K taps.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from archbench.architectures.kernels.cpu import build
from archbench.architectures.kernels.cpu.mamba_ops import NORMS, cpp_finish
from archbench.architectures.layers.ssm.causal_conv1d import CausalConvolution

pytestmark = pytest.mark.skipif(bool(build.problem()), reason=build.problem())


def check(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).abs().max() / other.abs().max() < 2e-6


def gradients(y: Tensor, operands: list[Tensor]) -> tuple[Tensor, ...]:
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return y.detach(), *torch.autograd.grad(y, operands, weights)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("B", "T", "C", "K", "bias"),
    [
        (1, 1, 1, 1, True),
        (2, 2, 3, 4, True),
        (3, 40, 70, 4, True),
        (2, 9, 16, 7, False),
        (1, 70, 130, 2, True),
    ],
)
def test_the_convolution_is_that_of_pytorch(B, T, C, K, bias, packed):
    torch.manual_seed(T)
    layer = CausalConvolution(C, K, bias=bias)
    layer.initialise()
    wide = torch.randn(B, T, 2 * C + 1)
    starts_BT = torch.rand(B, T) < 0.2
    starts_BT[:, 0] = True
    positions_BT = torch.stack(
        [torch.arange(T) - (row * torch.arange(T)).cummax(0).values for row in starts_BT]
    )
    found = []
    for path, dtype in (("cpp", torch.float32), ("torch", torch.float64)):
        layer, x_BTC = layer.to(dtype), wide.to(dtype)[..., C : 2 * C].requires_grad_()
        y_BTC = layer.activated(x_BTC, positions_BT=positions_BT if packed else None, path=path)
        found.append(gradients(y_BTC, [x_BTC, *layer.parameters()]))
    check(*found)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    ("B", "T", "groups", "width"), [(1, 1, 1, 4), (2, 5, 2, 3), (3, 70, 1, 37), (2, 9, 3, 64)]
)
def test_skip_gate_and_norm_by_their_formulas(B, T, groups, width, norm):
    torch.manual_seed(T)
    C, eps = groups * width, 1e-3
    drawn = [torch.randn(B, T, C), torch.randn(B, T, 2 * C + 1), torch.randn(B, T, 3 * C), *torch.randn(2, C)]

    def operands(dtype: torch.dtype) -> list[Tensor]:
        """y, x and gate (slices of something wider), D, weight."""
        y, x, gate, D, weight = (part.to(dtype) for part in drawn)
        parts = [y, x[..., 1 : C + 1], gate[..., C : 2 * C], D, *([] if norm == "none" else [weight])]
        return [part.requires_grad_() for part in parts]

    ours, exact = operands(torch.float32), operands(torch.float64)
    weight = None if norm == "none" else ours[4]
    found = cpp_finish(*ours[:4], norm=norm, weight_C=weight, groups=groups, eps=eps)
    y, x, gate, D, *rest = exact
    s, q = y + D * x, F.silu(gate)

    def normalised(part: Tensor) -> Tensor:
        apart = part.unflatten(-1, (groups, width))
        return (apart * (apart.square().mean(-1, keepdim=True) + eps).rsqrt()).flatten(-2) * rest[0]

    expected = {"none": lambda: s * q, "after_gate": lambda: normalised(s * q)}
    expected["before_gate"] = lambda: normalised(s) * q
    check(gradients(found, ours), gradients(expected[norm](), exact))


@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize(("B", "T", "groups", "width"), [(1, 1, 1, 4), (2, 5, 2, 3), (2, 70, 3, 20)])
def test_norm_and_gate_without_a_skip(B, T, groups, width, silu):
    torch.manual_seed(T)
    drawn = [torch.randn(B, T, groups * width), torch.randn(B, T, groups * width), torch.randn(width)]
    found = []
    for dtype in (torch.float32, torch.float64):
        y, gate, weight = (part.to(dtype).requires_grad_() for part in drawn)
        if dtype == torch.float32:
            settings = {"groups": groups, "eps": 1e-3, "silu": silu, "norm": "before_gate"}
            out = cpp_finish(y, None, gate, None, weight_C=weight.repeat(groups), **settings)
        else:
            normed = F.rms_norm(y.unflatten(-1, (groups, width)), (width,), weight, 1e-3).flatten(-2)
            out = normed * (F.silu(gate) if silu else gate.sigmoid())
        found.append(gradients(out, [y, gate, weight]))
    check(*found)


def test_the_number_of_threads_changes_no_bit():
    layer = CausalConvolution(100, 4)
    layer.initialise()
    x, gate, D = torch.randn(3, 70, 100, requires_grad=True), torch.randn(3, 70, 100), torch.randn(100)
    before, found = torch.get_num_threads(), []
    D.requires_grad_()
    weight = torch.rand(100, requires_grad=True)
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            y = layer.activated(x, path="cpp")
            out = cpp_finish(y, x, gate, D, norm="after_gate", weight_C=weight, eps=1e-5)
            found.append(gradients(out, [x, D, weight, *layer.parameters()]))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_half_precision_goes_through_float32_and_back():
    layer = CausalConvolution(20, 4)
    layer.initialise()
    x_BTC = torch.randn(2, 9, 20).bfloat16()
    y_BTC = layer.activated(x_BTC, path="cpp")
    assert y_BTC.dtype == torch.bfloat16
    assert torch.equal(y_BTC, layer.activated(x_BTC.float(), path="cpp").bfloat16())
