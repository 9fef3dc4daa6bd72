"""The kernels that only a GPU runs, against the definitions: FlexAttention, mamba-ssm, grouped experts.

Shapes: B batch, T length, H heads, G key/value heads, E head_dim, D d_model, N tokens, X experts.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from archbench.architectures.kernels.mamba_ssm import import_problem
from archbench.architectures.layers.attention.functional import Scores, attend
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.layers.moe.experts import Experts
from archbench.architectures.mixers.mamba import SelectiveConfig, SelectiveSSM
from archbench.architectures.mixers.mamba2 import SSD, SSDConfig

pytestmark = pytest.mark.gpu

PRECISIONS = {"float32": (torch.float32, 2e-3), "bf16": (torch.bfloat16, 3e-2)}


def share(found: Tensor, expected: Tensor) -> float:
    """The norm of a difference as a share of the norm."""
    expected = expected.detach().cpu().double()
    return ((found.detach().cpu().double() - expected).norm() / expected.norm()).item()


def attention(
    kernel: str, tensors: list[Tensor], scores: Scores, mask: Tensor | None, bias: Tensor | None
) -> list[Tensor]:
    """Outputs, and gradients of queries, keys and values."""
    own = [x.clone().requires_grad_() for x in tensors]
    y_BHTE = attend(*own, scores, kernel=kernel, causal=mask is None, mask=mask, bias=bias)
    weight = torch.linspace(-1, 1, y_BHTE.numel(), device=y_BHTE.device).view_as(y_BHTE)
    (y_BHTE.float() * weight).sum().backward()
    gradients = [x.grad for x in own]
    assert all(x is not None for x in gradients)
    return [y_BHTE, *gradients]  # type: ignore[list-item]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("length", [64, 200, 1024])
@pytest.mark.parametrize("kind", ["causal", "grouped", "softcap", "bias", "documents", "window"])
def test_flex_attention_is_the_definition_forward_and_backward(
    kind: str, length: int, precision: str, cuda: torch.device
) -> None:
    dtype, limit = PRECISIONS[precision]
    generator = torch.Generator().manual_seed(length)
    shapes = [(2, 4, length, 64), *[(2, 2 if kind == "grouped" else 4, length, 64)] * 2]
    tensors = [torch.randn(shape, generator=generator).to(cuda, dtype) for shape in shapes]
    position_T = torch.arange(length, device=cuda)
    ahead_TT = position_T[None] - position_T[:, None]
    mask = bias = None
    if kind == "documents":
        mask = ((ahead_TT <= 0) & (position_T[None] // 50 == position_T[:, None] // 50))[None, None]
    elif kind == "window":
        mask = ((ahead_TT <= 0) & (ahead_TT > -17))[None, None]
    elif kind == "bias":
        mask = (ahead_TT <= 0)[None, None]
        slope_H = torch.tensor([0.5, 0.25, 0.125, 0.0625], device=cuda)
        bias = (slope_H[:, None, None] * ahead_TT)[None].to(dtype)
    scores = Scores(scale=0.125, softcap=5.0 if kind == "softcap" else None)
    found = attention("flex", tensors, scores, mask, bias)
    wide = [x.double() for x in tensors]
    expected = attention("reference", wide, scores, mask, None if bias is None else bias.double())
    for name, own, other in zip(("output", "dq", "dk", "dv"), found, expected, strict=True):
        assert torch.isfinite(own).all(), name
        assert share(own, other) < limit, name


@pytest.mark.parametrize("length", [64, 704, 1024])
def test_masked_attention_has_a_finite_gradient_at_every_length(length: int, device: torch.device) -> None:
    """cuDNN's is NaN on Hopper 64 above a multiple of 128: it is passed over where there is a mask."""
    tensors = [torch.randn(2, 4, length, 64, device=device, dtype=torch.bfloat16) for _ in range(3)]
    mask = torch.ones(length, length, dtype=torch.bool, device=device).tril()[None, None]
    found = attention("sdpa", tensors, Scores(scale=0.125), mask, None)
    expected = attention("reference", [x.double() for x in tensors], Scores(scale=0.125), mask, None)
    for own, other in zip(found, expected, strict=True):
        assert share(own, other) < 3e-2


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_mamba_ssm_and_causal_conv1d_are_our_layers(kind: str, precision: str, cuda: torch.device) -> None:
    if problem := import_problem():
        pytest.skip(f"mamba-ssm and causal-conv1d cannot be imported: {problem}")
    dtype, limit = PRECISIONS[precision]

    def make(path: str) -> nn.Module:
        layer: SelectiveSSM | SSD
        if kind == "mamba":
            layer = SelectiveSSM(64, SelectiveConfig(scan=path))
        else:
            layer = SSD(64, SSDConfig(num_heads=4, d_state=32, scan=path))
        layer.initialise(1)
        return layer.to(cuda)

    plain, fused = make("reference"), make("mamba_ssm")
    fused.load_state_dict(plain.state_dict())
    results = []
    for layer in (plain, fused):
        x_BTD = torch.randn(2, 192, 64, generator=torch.Generator().manual_seed(0)).to(cuda).requires_grad_()
        context = Context(positions_BT=torch.arange(192, device=cuda)[None])
        with torch.autocast("cuda", dtype, enabled=layer is fused and dtype == torch.bfloat16):
            y_BTD = layer(x_BTD, context)
        y_BTD.float().pow(2).sum().backward()
        assert x_BTD.grad is not None
        results.append((y_BTD, x_BTD.grad))
    for own, other in zip(results[1], results[0], strict=True):
        assert share(own, other) < limit


@pytest.mark.parametrize("way", ["grouped", "padded"])
def test_fused_experts_are_the_loop_over_experts(way: str, device: torch.device) -> None:
    def make(dispatch: str) -> Experts:
        torch.manual_seed(0)
        config = ExpertsConfig(num_experts=8, experts_per_token=2, dispatch=dispatch)
        layer = Experts(64, 128, config)
        layer.initialise(1)
        return layer.to(device)

    loop, fused = make("loop"), make(way)
    fused.load_state_dict(copy.deepcopy(loop.state_dict()))
    results = []
    for layer in (loop, fused):
        x_BTD = torch.randn(4, 32, 64, generator=torch.Generator().manual_seed(1)).to(device).requires_grad_()
        with torch.autocast(device.type, torch.bfloat16):
            y_BTD = layer(x_BTD, None)[0]
        y_BTD.float().pow(2).sum().backward()
        results.append((y_BTD, x_BTD.grad))
    for own, other in zip(results[1], results[0], strict=True):
        assert share(own, other) < 2e-2
