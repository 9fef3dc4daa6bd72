"""Attention in C++ against its definition in float64: values, gradients, bounds of masks, threads."""

import random

import pytest
import torch
from torch import Tensor

from archbench.architectures.kernels.cpu import build
from archbench.architectures.kernels.cpu.transformer_ops import cpp_attention, seen_keys
from archbench.architectures.layers.attention.functional import Scores, attention_mask, reference

TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 2e-2}
SCALE = 0.3
MASKS = ("none", "causal", "window", "documents", "padding", "holes")
pytestmark = pytest.mark.skipif(bool(build.problem()), reason=build.problem())


def make_mask(kind: str, B: int, T: int, S: int) -> Tensor | None:
    """A mask (B or 1, 1, T or 1, S) of a kind; some of its queries see nothing."""
    query_1T, key_1S = torch.arange(T)[None], torch.arange(S)[None]
    causal = attention_mask(query_1T, key_1S, causal=True, window=None)
    if kind == "window":
        return attention_mask(query_1T, key_1S, causal=True, window=7)
    if kind == "documents":
        document_B1T1 = torch.randint(2, (B, 1, max(T, S), 1)).cumsum(2) // 9
        return causal & (document_B1T1[:, :, :T] == document_B1T1[:, :, :S].transpose(2, 3))
    if kind == "padding":
        return (key_1S < torch.randint(S + 1, (B, 1)))[:, None, None]
    return torch.rand(B, 1, T, S) < 0.2 if kind == "holes" else None


def attended(
    streams: list[Tensor], bias: Tensor | None, mask: Tensor | None, *, causal: bool, cap: float | None
) -> list[Tensor]:
    """The output and the gradients of queries, keys, values and of a bias that is trained."""
    q, k, v = streams
    operands = [*streams, *([] if bias is None or not bias.requires_grad else [bias])]
    if q.dtype == torch.float64:
        y = reference(q, k, v, Scores(scale=SCALE, softcap=cap), mask, bias, None)
    else:
        seen = None if mask is None or causal else seen_keys(mask, q.shape[2])
        y = cpp_attention(q, k, v, scale=SCALE, softcap=cap, causal=causal, seen=seen, bias=bias)
    slope = torch.linspace(-1, 1, y.numel()).sin().view(y.shape)
    return [y, *torch.autograd.grad(y, operands, slope.to(y.dtype))]


def compare(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, **settings) -> None:
    """Hold the kernel against the definition in float64, on the same rounded numbers."""
    found = attended([x.requires_grad_() for x in (q, k, v)], bias, mask, **settings)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    exact_bias = None if bias is None else bias.detach().double().requires_grad_(bias.requires_grad)
    if settings["causal"]:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
    expected = attended(wide, exact_bias, mask, causal=settings["causal"], cap=settings["cap"])
    limit = TOLERANCE[q.dtype]
    # A gradient is a difference of sums that may cancel: errors are a share of its operands' size.
    for one, two in zip(found, expected, strict=True):
        assert one.shape == two.shape
        off = (one.double() - two).abs().max().item() if one.numel() else 0.0
        assert off <= limit * max(1.0, two.abs().max().item()), (off, one.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("seed", range(6))
def test_values_and_gradients_are_those_of_the_definition(kind, seed, dtype):
    torch.manual_seed(seed)
    pick = random.Random(f"{kind} {seed}").choice
    causal = kind == "causal"
    B, G, repeats, T = pick([1, 2, 3]), pick([1, 2, 3]), pick([1, 2]), pick([1, 5, 47, 48, 49, 64, 97, 130])
    S = T if causal else pick([T, 1, 7, 64, 65, 100])
    E, F = pick([4, 16, 24, 64, 80]), pick([8, 16, 33, 64])
    cap, bias = pick([None, 2.0]), None
    if pick([False, True]) and not causal:
        bias = torch.randn(pick([1, B]), G * repeats, T, S).requires_grad_(pick([False, True]))
    # Queries and keys as a projection leaves them, values without gaps.
    q = torch.randn(B, T, G * repeats, E).to(dtype).transpose(1, 2)
    k = torch.randn(B, S, G, E).to(dtype).transpose(1, 2)
    compare(q, k, torch.randn(B, G, S, F).to(dtype), make_mask(kind, B, T, S), bias, causal=causal, cap=cap)


def test_a_stream_with_gaps_in_its_last_dimension_is_read_rightly():
    q, k, v = (torch.randn(2, 3, 50, 2 * 8)[..., ::2] for _ in range(3))
    compare(q, k, v, None, None, causal=True, cap=None)


def test_a_query_that_sees_nothing_gets_zeros_and_gives_none():
    q, k, v = (torch.randn(1, 2, 100, 16, requires_grad=True) for _ in range(3))
    mask = torch.ones(1, 1, 100, 100, dtype=torch.bool)
    mask[:, :, 3] = False
    mask[:, :, 48:96] = False  # a whole block
    y = cpp_attention(q, k, v, scale=SCALE, seen=seen_keys(mask, 100))
    dq, dk, dv = torch.autograd.grad(y.sum(), [q, k, v])
    for rows in (y, dq):
        assert rows[:, :, 3].eq(0).all()
        assert rows[:, :, 48:96].eq(0).all()
    assert all(x.isfinite().all() for x in (y, dq, dk, dv))
    assert y[:, :, 4].ne(0).all()


def test_a_number_that_is_none_is_not_hidden():
    q, k, v = (torch.randn(1, 1, 70, 16) for _ in range(3))
    k[0, 0, 10, 2] = torch.nan
    y = cpp_attention(q, k, v, scale=SCALE, causal=True)
    assert y[:, :, :10].isfinite().all()
    assert y[:, :, 10:].isnan().all()


def test_bounds_are_of_the_first_and_the_last_key_of_a_block():
    mask = torch.zeros(1, 1, 100, 200, dtype=torch.bool)
    mask[0, 0, 5, 20] = mask[0, 0, 47, 90] = mask[0, 0, 99, 199] = True
    seen = seen_keys(mask, 100)
    assert seen.bounds.tolist() == [[[20, 91], [0, 0], [199, 200]]]
    assert seen.share == pytest.approx((48 * 71 + 4 * 1) / (100 * 200))


def test_keys_that_nobody_sees_are_not_read():
    """Values that would be no number, were they multiplied by a weight of zero."""
    q, k, v = (torch.randn(1, 1, 300, 16) for _ in range(3))
    mask = attention_mask(torch.arange(300)[None], torch.arange(300)[None], causal=True, window=10)
    whole = cpp_attention(q, k, v, scale=SCALE, seen=seen_keys(mask, 300))
    v[:, :, :64] = torch.nan
    found = cpp_attention(q, k, v, scale=SCALE, seen=seen_keys(mask, 300))
    # Blocks of 48 queries from 144 on begin at key 135, or at a multiple of 64 below.
    assert torch.equal(found[:, :, 144:], whole[:, :, 144:])


def test_the_number_of_threads_changes_no_bit():
    streams = [torch.randn(3, 4, 130, 24, requires_grad=True) for _ in range(3)]
    bias, mask = torch.randn(1, 4, 130, 130, requires_grad=True), make_mask("holes", 1, 130, 130)
    before, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(attended(streams, bias, mask, causal=False, cap=None))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_a_second_derivative_is_refused():
    q, k, v = (torch.randn(1, 1, 8, 16, requires_grad=True) for _ in range(3))
    slope = torch.autograd.grad(cpp_attention(q, k, v, scale=SCALE).square().sum(), q, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()
