"""Delta rules, gated linear attention and RWKV-7 in C++ against the plain recurrences in float64.

Shapes: B batch, T length, H heads, K key width, V value width.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from archbench.architectures.kernels.cpu import build
from archbench.architectures.layers.linear_attention.delta_rule import delta_rule
from archbench.architectures.layers.linear_attention.dplr import dplr
from archbench.architectures.layers.linear_attention.gla import gated_linear_attention

pytestmark = pytest.mark.skipif(bool(build.problem()), reason=build.problem())

SHAPES = [(1, 2, 1, 1, 1), (2, 5, 3, 3, 2), (2, 37, 2, 18, 36), (1, 70, 1, 130, 33), (1, 33, 2, 32, 9)]
KINDS: dict[str, dict[str, Any]] = {
    "no decay": {"decays": 0},
    "heads": {"decays": 1},
    "channels": {"decays": 2},
    "three updates": {"decays": 1, "updates": 3},
}
"""Decays, and updates of each token."""


def delta_operands(shape: tuple[int, ...], *, decays: int, updates: int = 1) -> list[Tensor]:
    """q, k, v, beta up to 2, the decays if there are any, and the first memory."""
    B, T, H, K, V = shape
    g = torch.Generator().manual_seed(T)
    shapes = ((B, T, H, K), (B, T * updates, H, K), (B, T * updates, H, V), (B, T * updates, H), (B, H, K, V))
    q, k, v, beta, memory = (torch.randn(s, generator=g) for s in shapes)
    decay = -torch.randn((B, T, H, K)[: decays + 2], generator=g).abs() if decays else None
    if decay is not None and T > 20:
        decay[:, 20] = -torch.inf  # where a document begins
    return [q, k, v, 2 * beta.sigmoid(), *([] if decay is None else [decay]), memory]


def run_delta(*operands: Tensor, path: str, unit_keys: bool = True) -> tuple[Tensor, Tensor]:
    *inputs, memory = operands
    log_decay = inputs[4] if len(inputs) > 4 else None
    return delta_rule(*inputs[:4], log_decay, memory, unit_keys=unit_keys, path=path)


def diagonal_operands(shape: tuple[int, ...]) -> list[Tensor]:
    """q, k, v, a, b, the decays of channels and the first memory."""
    B, T, H, K, V = shape
    g = torch.Generator().manual_seed(T)
    shapes = ((B, T, H, K), (B, T, H, K), (B, T, H, V), *[(B, T, H, K)] * 3, (B, H, K, V))
    q, k, v, a, b, decay, memory = (torch.randn(s, generator=g) for s in shapes)
    a = torch.nn.functional.normalize(a, dim=-1)
    decay = -decay.abs()
    if T > 20:
        decay[:, 20], a[:, 20] = -torch.inf, 0.0
    return [q, k, v, -a, a * b.sigmoid(), decay, memory]


Scan = Callable[..., tuple[Tensor, Tensor]]


def results(scan: Scan, operands: list[Tensor], dtype: torch.dtype, path: str) -> list[Tensor]:
    """Outputs, last memory, and all gradients, for the same weights of outputs and memory every time."""
    operands = [x.to(dtype).requires_grad_() for x in operands]
    found = scan(*operands, path=path)
    g = torch.Generator().manual_seed(1)
    weights = [torch.randn(x.shape, generator=g).to(dtype) for x in found]
    return [*(x.detach() for x in found), *torch.autograd.grad(found, operands, weights)]


def check_against_float64(scan: Scan, operands: list[Tensor]) -> None:
    """Each within 2e-6 of its largest number, or as near as the plain loop in float32 comes, twice over."""
    ours, plain, exact = (
        results(scan, operands, dtype, path)
        for path, dtype in (
            ("cpp", torch.float32),
            ("reference", torch.float32),
            ("reference", torch.float64),
        )
    )
    for found, other, expected in zip(ours, plain, exact, strict=True):
        size = expected.abs().max()
        rounding = 2 * (other - expected).abs().max()
        assert (found - expected).abs().max() <= max(2e-6 * size, rounding)


@pytest.mark.parametrize("unit_keys", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_delta_rule_is_the_reference(shape, kind, unit_keys):
    operands = delta_operands(shape, **KINDS[kind])
    if not unit_keys:
        operands[1] = torch.nn.functional.normalize(operands[1], dim=-1)
    check_against_float64(partial(run_delta, unit_keys=unit_keys), operands)


@pytest.mark.parametrize("shape", SHAPES)
def test_gated_linear_attention_is_the_reference(shape):
    q, k, v, _, _, decay, memory = diagonal_operands(shape)
    check_against_float64(gated_linear_attention, [q, k, v, decay, memory])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_diagonal_plus_rank_one_is_the_reference(shape):
    check_against_float64(dplr, diagonal_operands(shape))


def test_slices_of_wider_tensors_are_read_in_place():
    q, k, v, beta, decay, memory = delta_operands((2, 19, 2, 5, 3), decays=2)
    wide = torch.cat([x.flatten(2) for x in (q, k, v)], dim=-1)
    parts = (part.unflatten(-1, (2, -1)) for part in wide.split([10, 10, 6], dim=-1))
    found = run_delta(*parts, beta, decay, memory, path="cpp")
    for one, other in zip(found, run_delta(q, k, v, beta, decay, memory, path="cpp"), strict=True):
        assert torch.equal(one, other)


def test_what_is_transposed_or_expanded_is_not_mistaken():
    q, k, v, beta, decay, memory = delta_operands((2, 19, 2, 5, 3), decays=1)
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    k = k[:, :1].expand_as(k)
    operands = [q, k, v, beta[..., :1].expand_as(beta), decay, memory.mT.contiguous().mT]
    check_against_float64(run_delta, operands)


def test_the_number_of_threads_changes_no_bit():
    before, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(results(dplr, diagonal_operands((3, 37, 2, 5, 9)), torch.float32, "cpp"))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_a_sequence_is_not_touched_by_its_neighbours():
    operands = delta_operands((3, 37, 2, 5, 9), decays=2, updates=2)
    whole = run_delta(*operands, path="cpp")
    for part, found in zip(whole, run_delta(*(x[1:2] for x in operands), path="cpp"), strict=True):
        assert torch.equal(part[1:2], found)


@pytest.mark.parametrize("rate", [1e-3, 1.0, 1e4])
def test_any_decay(rate):
    """Channels of every speed, beside those of the recurrence in float64."""
    q, k, v, beta, decay, memory = delta_operands((1, 80, 1, 8, 8), decays=2)
    decay = decay * rate * torch.logspace(-4, 0, 8)
    check_against_float64(run_delta, [q, k, v, beta, decay, memory])


def test_rounding_does_not_grow_under_reflections():
    """beta = 2 and one key throughout."""
    q, k, v, beta, memory = delta_operands((1, 128, 1, 4, 4), decays=0)
    operands = [q, k[:, :1].expand_as(k), v, torch.full_like(beta, 2.0), memory]
    check_against_float64(run_delta, operands)
