"""Our calls of flash-linear-attention against its own Triton kernels, in Triton's interpreter.

Shapes: B batch, T length, D d_model, H heads, K key width, V value width, S updates of all tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from archbench.architectures.kernels import fla
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.linear_attention.delta_rule import delta_rule
from archbench.architectures.layers.linear_attention.dplr import dplr
from archbench.architectures.layers.linear_attention.gla import gated_linear_attention
from archbench.architectures.layers.ssm.ssd import ssd
from archbench.architectures.mixers import deltanet, deltaproduct, gated_deltanet, gla, kda, rwkv7
from tests.kernels.differences import assert_close
from tests.kernels.test_mamba_ssm import SHAPES, gradients, ssd_inputs

pytestmark = pytest.mark.kernels

SIZES = [(1, 70, 1, 16, 16), (2, 21, 2, 32, 16)]
"""B, T, H, K, V: several chunks of 64 positions, and a single one that is not full."""
PACKED = 1e-4
"""Tolerance on packed documents: a decay of zero is replaced by a small one; its logarithm costs digits."""
RECURRENCES: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "gla": gated_linear_attention,
    "deltanet": delta_rule,
    "gated_deltanet": delta_rule,
    "deltaproduct": delta_rule,
    "gated_deltaproduct": delta_rule,
    "kda": delta_rule,
    "rwkv7": dplr,
}


@pytest.fixture(autouse=True)
def fla_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fla, "DEVICES", ("cpu",))


def operands(
    name: str, size: tuple[int, ...], dtype: torch.dtype = torch.float32, starts_BT: Tensor | None = None
) -> list[Tensor]:
    """Return q, k, v and the other operands of a recurrence, which require gradients; betas and decays in
    float32. Documents begin with an empty memory at ``starts_BT``."""
    batch, length, heads, key, value = size
    generator = torch.Generator().manual_seed(length)
    updates = 2 if "product" in name else 1
    q, decay, recall = (torch.randn(batch, length, heads, key, generator=generator) for _ in range(3))
    k = F.normalize(torch.randn(batch, length * updates, heads, key, generator=generator), dim=-1)
    v = torch.randn(batch, length * updates, heads, value, generator=generator)
    beta = torch.rand(batch, length * updates, heads, generator=generator)
    log_decay, recall = F.logsigmoid(decay + 2), -F.normalize(recall, dim=-1)
    if starts_BT is not None:
        log_decay = log_decay.masked_fill(starts_BT[..., None, None], -math.inf)
        recall = recall.masked_fill(starts_BT[..., None, None], 0.0)
    by_head = log_decay[..., 0].contiguous()
    rest = {
        "gla": [log_decay],
        "deltanet": [beta],
        "gated_deltanet": [beta, by_head],
        "deltaproduct": [beta],
        "gated_deltaproduct": [beta, by_head],
        "kda": [beta, log_decay],
        "rwkv7": [recall.to(dtype), (-recall / 2).to(dtype), log_decay],
    }[name]
    return [tensor.requires_grad_() for tensor in (*(x.to(dtype) for x in (q, k, v)), *rest)]


def assert_same(
    name: str, inputs: list[Tensor], initial: Tensor | None, dtype: torch.dtype = torch.float32
) -> None:
    """Assert equal outputs, last memories and gradients of kernel and recurrence."""
    leaves = inputs if initial is None else [*inputs, initial]
    exact = [tensor.detach().float().requires_grad_() for tensor in leaves]
    outputs, expected = (
        RECURRENCES[name](
            *tensors[: len(inputs)],
            initial_BHKV=None if initial is None else tensors[-1],
            path=path,
        )
        for tensors, path in ((leaves, "fla"), (exact, "reference"))
    )
    for actual, wanted in zip(outputs, expected, strict=True):
        assert_close(f"fla {name}", actual, wanted, dtype)
    for actual, wanted in zip(gradients(outputs, leaves), gradients(expected, exact), strict=True):
        assert_close(f"fla {name}", actual, wanted, dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", RECURRENCES)
def test_the_kernel_computes_our_recurrence(name: str, size: tuple[int, ...]) -> None:
    initial = torch.randn(size[0], *size[2:], generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert_same(name, operands(name, size), initial if size == SIZES[1] else None)


@pytest.mark.parametrize("name", RECURRENCES)
def test_its_operands_may_be_bfloat16(name: str) -> None:
    assert_same(name, operands(name, SIZES[1], torch.bfloat16), None, torch.bfloat16)


@pytest.mark.parametrize("name", ["gla", "gated_deltanet", "gated_deltaproduct", "kda", "rwkv7"])
def test_documents_begin_with_an_empty_memory(name: str) -> None:
    starts_BT = torch.zeros(2, 21, dtype=torch.bool)
    starts_BT[0, 7] = starts_BT[0, 16] = starts_BT[1, 1] = True
    inputs = operands(name, SIZES[1], starts_BT=starts_BT)
    y_BTHV, _ = RECURRENCES[name](*inputs, path="fla")
    expected_BTHV, _ = RECURRENCES[name](*inputs, path="reference")
    for actual, wanted in (
        (y_BTHV, expected_BTHV),
        *zip(gradients((y_BTHV,), inputs), gradients((expected_BTHV,), inputs), strict=True),
    ):
        assert_close(f"fla {name}, packed", actual, wanted, tolerance=PACKED)


@pytest.mark.parametrize("shape", SHAPES)
def test_ssd_is_linear_attention_with_a_decay_for_each_head(shape: tuple[int, ...]) -> None:
    inputs = ssd_inputs(shape)
    outputs, expected = (ssd(*inputs, path=path) for path in ("fla", "reference"))
    for actual, wanted in zip(outputs, expected, strict=True):
        assert_close("fla mamba2", actual, wanted)
    for actual, wanted in zip(gradients(outputs, inputs), gradients(expected, inputs), strict=True):
        assert_close("fla mamba2", actual, wanted)


def test_ssd_computes_packed_documents() -> None:
    inputs = ssd_inputs(SHAPES[1])[:-1]
    reset_BT = torch.zeros(2, 40, dtype=torch.bool)
    reset_BT[0, 7] = reset_BT[0, 16] = reset_BT[1, 31] = True
    outputs, expected = (ssd(*inputs, reset_BT=reset_BT, path=path) for path in ("fla", "reference"))
    assert_close("fla mamba2, packed", outputs[0], expected[0], tolerance=PACKED)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "module", [gla, deltanet, gated_deltanet, deltaproduct, kda, rwkv7], ids=lambda module: module.__name__
)
def test_a_mixer_reads_a_prompt_in_two_pieces_as_in_pytorch(module: Any, precision: str) -> None:
    results = []
    for scan in ("fla", "torch"):
        torch.manual_seed(0)
        mixer = module.make(32, module.Config(num_heads=1, scan=scan))
        mixer.initialise(1)
        x_BTD = torch.randn(2, 20, 32, generator=torch.Generator().manual_seed(1))
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            whole_BTD = mixer(x_BTD, Context.whole(x_BTD[..., 0], None, None))
            first_BTD, state = mixer.read(x_BTD[:, :13], None, Context.whole(x_BTD[:, :13, 0], None, None))
            second_BTD, state = mixer.read(
                x_BTD[:, 13:], state, Context.next(x_BTD[:, 13:, 0], [13, 13], None)
            )
        assert state["memory"].dtype == torch.float32
        results.append((whole_BTD, torch.cat([first_BTD, second_BTD], dim=1), state["memory"]))
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    for actual, expected in zip(*results, strict=True):
        assert_close(f"fla {module.__name__.rpartition('.')[2]} mixer", actual, expected.detach(), dtype)


def test_the_functions_that_we_call_exist() -> None:
    fla.import_problem.cache_clear()
    assert fla.import_problem() == ""
