"""Our chunked recurrences against the plain loops in flash-linear-attention, forward and gradients.

``PYTHONPATH=.kernels/packages python -m tests.kernels.test_naive_references`` prints the largest differences
relative to the largest value, for docs/models/state_space.md. The loops compute in float32; here
their casts become casts to float64, so that rounding does not hide a difference.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from archbench.architectures.layers.attention.forgetting import in_columns
from tests.kernels.differences import note
from tests.kernels.test_fla import RECURRENCES, operands

pytestmark = pytest.mark.kernels

SIZES = [(2, 131, 2, 32, 16), (1, 20, 3, 16, 32)]
"""B, T, H, K, V: chunks of which the last is not full, and less than one chunk."""
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-4}
"""Relative to the largest value of an output or gradient."""


class _Double(ModuleType):
    """The torch that a module of naive loops sees: its float32 is float64."""

    float = float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def naive(module: str, dtype: torch.dtype) -> Iterator[Any]:
    """Give a module of flash-linear-attention, which computes in ``dtype``."""
    loops = importlib.import_module(f"fla.ops.{module}.naive")
    if dtype == torch.float32:
        yield loops
        return
    to_double = mock.patch.object(Tensor, "float", Tensor.double)
    with mock.patch.object(loops, "torch", _Double("torch")), to_double:
        yield loops


def _heads_first(*tensors: Tensor) -> list[Tensor]:
    return [tensor.transpose(1, 2) for tensor in tensors]


def authors(name: str, parts: list[Tensor]) -> Tensor:
    """Return y (B, T, H, V) of the loop in flash-linear-attention."""
    q, k, v, *rest = parts
    dtype = q.dtype
    if name == "gla":
        with naive("gla", dtype) as loops:
            return loops.naive_recurrent_gla(q, k, v, rest[0])[0]
    if name == "deltanet":
        with naive("delta_rule", dtype) as loops:
            return loops.delta_rule_recurrence(*_heads_first(q, k, v, rest[0]))[0].transpose(1, 2)
    if name == "gated_deltanet":
        with naive("gated_delta_rule", dtype) as loops:
            return loops.naive_recurrent_gated_delta_rule(q, k, v, *rest)[0]
    if name in ("deltaproduct", "gated_deltaproduct"):
        beta, g = rest[0], rest[1] if len(rest) > 1 else None
        with naive("gated_delta_product", dtype) as loops:
            scale = q.shape[-1] ** -0.5
            return loops.naive_recurrent_gated_delta_product(q, k, v, g, beta, scale, num_householder=2)[0]
    if name == "kda":
        with naive("kda", dtype) as loops:
            return loops.naive_recurrent_kda(q, k, v, rest[1], rest[0])[0]
    with naive("generalized_delta_rule.dplr", dtype) as loops:
        heads = _heads_first(q * q.shape[-1] ** 0.5, k, v, *rest)
        return loops.dplr_recurrence(*heads)[0].transpose(1, 2)


def difference(mine: Callable[[], Tensor], theirs: Callable[[], Tensor], parts: list[Tensor]) -> float:
    """Return the largest difference of outputs and gradients, each relative to its largest value."""
    pairs = []
    for compute in (mine, theirs):
        y = compute()
        weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        pairs.append([y, *torch.autograd.grad((y * weights.to(y.dtype)).sum(), parts)])
    return max(
        float((a - b).detach().abs().max() / b.detach().abs().max()) for a, b in zip(*pairs, strict=True)
    )


def recurrence_difference(name: str, size: tuple[int, ...], dtype: torch.dtype) -> float:
    parts = [part.detach().to(dtype).requires_grad_() for part in operands(name, size)]
    return difference(lambda: RECURRENCES[name](*parts)[0], lambda: authors(name, parts), parts)


def forgetting_difference(size: tuple[int, ...], dtype: torch.dtype) -> float:
    """The difference of forgetting attention, whose sums of log gates are columns of queries and keys."""
    batch, length, heads, width, _ = size
    generator = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(batch, length, heads, width, generator=generator, dtype=dtype) for _ in range(3))
    g = F.logsigmoid(torch.randn(batch, length, heads, generator=generator, dtype=dtype) + 2)
    parts = [part.requires_grad_() for part in (q, k, v, g)]

    def mine() -> Tensor:
        totals = g.transpose(1, 2).cumsum(2)
        q_BHTK, k_BHTK, v_BHTK = _heads_first(q, k, v)
        streams = in_columns(q_BHTK, k_BHTK, v_BHTK, totals, width**-0.5)
        y = F.scaled_dot_product_attention(*streams, is_causal=True, scale=width**-0.5)
        return y[..., :width].transpose(1, 2)

    def theirs() -> Tensor:
        with naive("forgetting_attn", dtype) as loops:
            return loops.naive_forgetting_attn(q, k, v, g)

    return difference(mine, theirs, parts)


NAMES = [*RECURRENCES, "forgetting_attention"]


def largest(name: str, size: tuple[int, ...], dtype: torch.dtype) -> float:
    if name == "forgetting_attention":
        return forgetting_difference(size, dtype)
    return recurrence_difference(name, size, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_the_authors_loop_gives_the_same(name: str, size: tuple[int, ...], dtype: torch.dtype) -> None:
    difference = largest(name, size, dtype)
    note(f"fla {name}, loop of the authors", dtype, difference)
    assert difference < TOLERANCE[dtype]


def main() -> None:
    """Print the table."""
    print("| recurrence | float64 | float32 |\n|---|--:|--:|")
    for name in NAMES:
        cells = [f"{max(largest(name, size, dtype) for size in SIZES):.1e}" for dtype in TOLERANCE]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
