"""Our calls of flash-linear-attention against its own Triton kernels, in Triton's interpreter.

Shapes: B batch, T length, H heads, K key width, V value width.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from architectures.kernels import fla
from architectures.layers.linear_attention.delta_rule import delta_rule
from architectures.layers.linear_attention.gla import gated_linear_attention
from architectures.layers.ssm.ssd import ssd
from tests.kernels.test_mamba_ssm import SHAPES, assert_close, gradients, ssd_inputs

pytestmark = pytest.mark.kernels

SIZES = [(1, 96, 2, 16, 16), (2, 33, 1, 32, 16)]
"""B, T, H, K, V: several chunks of 64 positions, and a single one that is not full."""


def recurrence(name: str) -> Callable[..., tuple[Tensor, Tensor]]:
    return gated_linear_attention if name == "gla" else delta_rule


def operands(name: str, size: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Return q, k, v and the other operands of a recurrence, which require gradients."""
    batch, length, heads, key, value = size
    generator = torch.Generator().manual_seed(length)
    q, k, decay = (torch.randn(batch, length, heads, key, generator=generator) for _ in range(3))
    v = torch.randn(batch, length, heads, value, generator=generator)
    beta = torch.rand(batch, length, heads, generator=generator)
    log_decay = F.logsigmoid(decay + 2)
    tensors = {
        "gla": [q, k, v, log_decay],
        "deltanet": [q, F.normalize(k, dim=-1), v, beta],
        "gated_deltanet": [q, F.normalize(k, dim=-1), v, beta, log_decay[..., 0].contiguous()],
    }[name]
    return [tensor.to(dtype).requires_grad_() for tensor in tensors]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("continued", [False, True])
@pytest.mark.parametrize("name", ["gla", "deltanet", "gated_deltanet"])
def test_the_kernel_computes_our_recurrence(name: str, size: tuple[int, ...], continued: bool) -> None:
    inputs = operands(name, size)
    initial = torch.randn(size[0], *size[2:]).requires_grad_() if continued else None
    outputs, expected = (
        recurrence(name)(*inputs, initial_BHKV=initial, path=path) for path in ("fla", "reference")
    )
    for actual, wanted in zip(outputs, expected, strict=True):
        assert_close(actual, wanted)
    if initial is not None:
        inputs = [*inputs, initial]
    for actual, wanted in zip(gradients(outputs, inputs), gradients(expected, inputs), strict=True):
        assert_close(actual, wanted)


@pytest.mark.parametrize("name", ["gla", "gated_deltanet"])
def test_its_operands_may_be_bfloat16(name: str) -> None:
    inputs = operands(name, SIZES[0], torch.bfloat16)
    y_BTHV, _ = recurrence(name)(*inputs, path="fla")
    expected_BTHV, _ = recurrence(name)(*(x.float() for x in inputs), path="reference")
    assert_close(y_BTHV, expected_BTHV, torch.bfloat16)


@pytest.mark.parametrize("shape", SHAPES)
def test_ssd_is_linear_attention_with_a_decay_for_each_head(shape: tuple[int, ...]) -> None:
    inputs = ssd_inputs(shape)
    outputs, expected = (ssd(*inputs, path=path) for path in ("fla", "reference"))
    for actual, wanted in zip(outputs, expected, strict=True):
        assert_close(actual, wanted)
    for actual, wanted in zip(gradients(outputs, inputs), gradients(expected, inputs), strict=True):
        assert_close(actual, wanted)


def test_the_functions_that_we_call_exist() -> None:
    fla.import_problem.cache_clear()
    assert fla.import_problem() == ""
