"""Our calls of mamba-ssm and causal-conv1d against the packages' own kernels, in Triton's interpreter.

Shapes: B batch, T length, H heads, P head_dim, G groups of heads, N state size, C channels.
"""

from __future__ import annotations

import importlib

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from archbench.architectures.kernels import mamba_ssm as backend
from archbench.architectures.layers.ssm.causal_conv1d import CausalConvolution
from archbench.architectures.layers.ssm.selective_scan import selective_scan
from archbench.architectures.layers.ssm.ssd import ssd
from tests.kernels.differences import assert_close

pytestmark = pytest.mark.kernels

SSD, STEP = "mamba-ssm SSD", "mamba-ssm selective_state_update"
NORM, SCAN = "mamba-ssm gated norm", "mamba-ssm selective_scan_ref"
CONVOLUTION = "causal-conv1d causal_conv1d_ref"
SHAPES = [(1, 64, 2, 16, 1, 16, 32), (2, 40, 4, 16, 2, 16, 16), (1, 17, 3, 32, 3, 32, 16)]
"""B, T, H, P, G, N and the chunk length."""


def ssd_inputs(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Return x, delta, A, B, C and an initial state, which require gradients."""
    batch, length, heads, width, groups, state, _ = shape
    generator = torch.Generator().manual_seed(length)
    x, B, C, initial = (
        torch.randn(*size, generator=generator)
        for size in (
            (batch, length, heads, width),
            (batch, length, groups, state),
            (batch, length, groups, state),
            (batch, heads, width, state),
        )
    )
    delta = torch.rand(batch, length, heads, generator=generator) / 2
    A = -torch.rand(heads, generator=generator) - 0.1
    inputs = [x.to(dtype), delta, A, B.to(dtype), C.to(dtype), initial]
    return [tensor.requires_grad_() for tensor in inputs]


def gradients(outputs: tuple[Tensor, ...], inputs: list[Tensor]) -> list[Tensor]:
    """Return gradients of a random projection of the outputs."""
    generator = torch.Generator().manual_seed(1)
    loss = sum((y.float() * torch.randn(y.shape, generator=generator)).sum() for y in outputs)
    return list(torch.autograd.grad(loss, inputs))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("continued", [False, True])
def test_the_kernel_of_ssd_computes_our_recurrence(
    mamba_ssm: str, shape: tuple[int, ...], continued: bool
) -> None:
    inputs = ssd_inputs(shape)
    operands = inputs if continued else inputs[:-1]
    outputs, expected = (ssd(*operands, chunk=shape[-1], path=path) for path in ("mamba_ssm", "reference"))
    for actual, wanted in zip(outputs, expected, strict=True):
        assert_close(SSD, actual, wanted)
    for actual, wanted in zip(gradients(outputs, operands), gradients(expected, operands), strict=True):
        assert_close(SSD, actual, wanted)


def test_it_computes_packed_documents(mamba_ssm: str) -> None:
    inputs = ssd_inputs(SHAPES[1])[:-1]
    reset_BT = torch.zeros(2, 40, dtype=torch.bool)
    reset_BT[0, 7] = reset_BT[0, 16] = reset_BT[1, 31] = True
    outputs, expected = (
        ssd(*inputs, reset_BT=reset_BT, chunk=16, path=path) for path in ("mamba_ssm", "reference")
    )
    assert_close(SSD, outputs[0], expected[0])
    for actual, wanted in zip(gradients(outputs[:1], inputs), gradients(expected[:1], inputs), strict=True):
        assert_close(SSD, actual, wanted)


def test_its_operands_may_be_bfloat16(mamba_ssm: str) -> None:
    inputs = ssd_inputs(SHAPES[0], torch.bfloat16)[:-1]
    y_BTHP, _ = ssd(*inputs, chunk=32, path="mamba_ssm")
    expected_BTHP, _ = ssd(*(x.float() for x in inputs), path="reference")
    assert_close(SSD, y_BTHP, expected_BTHP, torch.bfloat16)


@pytest.mark.parametrize("skip", ["head", "channel"])
def test_time_step_gate_and_skip_are_those_of_the_mixer(mamba_ssm: str, skip: str) -> None:
    """mamba-ssm fuses what our mixer computes around the scan: both definitions are the same."""
    shape = SHAPES[0]
    x, dt, A, B, C, initial = ssd_inputs(shape)
    z = torch.randn_like(x)
    bias = torch.randn(shape[2])
    D = torch.randn(shape[2], *([shape[3]] if skip == "channel" else []))
    module = importlib.import_module("mamba_ssm.ops.triton.ssd_combined")
    y, last = module.mamba_chunk_scan_combined(
        x, dt, A, B, C, 32, D=D, z=z, dt_bias=bias, initial_states=initial,
        dt_softplus=True, dt_limit=(0.05, 1.0), return_final_states=True,
    )  # fmt: skip
    delta = F.softplus(dt + bias).clamp(0.05, 1.0)
    scanned, expected_last = ssd(x, delta, A, B, C, initial, path="reference")
    expected = (scanned + (D if D.ndim == 2 else D[:, None]) * x) * F.silu(z)
    assert_close(SSD, y, expected)
    assert_close(SSD, last, expected_last)


def test_a_decoding_step_is_that_of_the_package(mamba_ssm: str) -> None:
    x, delta, A, B, C, initial = (tensor.detach() for tensor in ssd_inputs((2, 1, 4, 16, 2, 16, 16)))
    module = importlib.import_module("mamba_ssm.ops.triton.selective_state_update")
    state, D = initial.clone(), torch.randn(4, 1)
    y = module.selective_state_update(
        state,
        x[:, 0],
        delta[:, 0, :, None].expand(-1, -1, 16),
        A[:, None, None].expand(-1, 16, 16),
        B[:, 0],
        C[:, 0],
        D.expand(-1, 16),
        dt_bias=torch.zeros(4, 1).expand(-1, 16),
    )
    expected_y, expected_state = ssd(x, delta, A, B, C, initial, path="mamba_ssm")
    assert_close(STEP, y, expected_y[:, 0] + D * x[:, 0])
    assert_close(STEP, state, expected_state)


@pytest.mark.parametrize("before_gate", [False, True])
def test_the_gated_norm_is_that_of_the_package(mamba_ssm: str, before_gate: bool) -> None:
    from archbench.architectures.mixers.mamba2 import GatedNorm

    generator = torch.Generator().manual_seed(0)
    y, gate, weight = (torch.randn(*size, generator=generator) for size in ((2, 5, 32), (2, 5, 32), (32,)))
    norm = GatedNorm(32, 2, 1e-5, before_gate=before_gate)
    norm.weight.data.copy_(weight)
    module = importlib.import_module("mamba_ssm.ops.triton.layernorm_gated")
    actual = module.rmsnorm_fn(y, weight, None, gate, eps=1e-5, group_size=16, norm_before_gate=before_gate)
    assert_close(NORM, actual, norm(y, gate).detach())


def test_the_selective_scan_has_their_signature(mamba_ssm: str) -> None:
    """The kernel is CUDA C++: the package's Python definition takes its place at the same call."""
    generator = torch.Generator().manual_seed(0)
    u, delta, B, C = (torch.randn(2, 11, n, generator=generator) for n in (6, 6, 4, 4))
    A = -torch.rand(6, 4, generator=generator)
    inputs = [tensor.requires_grad_() for tensor in (u, delta.abs(), A, B, C)]
    outputs, expected = (selective_scan(*inputs, path=path) for path in ("mamba_ssm", "reference"))
    for actual, wanted in zip(outputs, expected, strict=True):
        assert_close(SCAN, actual, wanted)
    for actual, wanted in zip(gradients(outputs[:1], inputs), gradients(expected[:1], inputs), strict=True):
        assert_close(SCAN, actual, wanted)


@pytest.mark.parametrize("packed", [False, True])
def test_the_convolution_has_their_signature(mamba_ssm: str, packed: bool) -> None:
    layer = CausalConvolution(16, 4)
    layer.initialise()
    x_BTC = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(0))
    positions_BT = (
        torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 1, 0, 1, 2, 3, 0, 1, 2]]) if packed else None
    )
    actual, expected = (
        layer.activated(x_BTC, positions_BT=positions_BT, path=path) for path in ("mamba_ssm", "torch")
    )
    assert_close(CONVOLUTION, actual, expected.detach())


def test_the_functions_that_we_call_exist(mamba_ssm: str) -> None:
    assert backend.import_problem() == ""
