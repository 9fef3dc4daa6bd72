"""Shapes: B batch, T length, H heads, N chunks, C positions of a chunk, K channels."""

import math

import pytest
import torch

from archbench.architectures.layers.linear_attention.chunking import (
    from_chunks,
    pair_sums,
    sums_after,
    to_chunks,
)


@pytest.mark.parametrize(("T", "size"), [(1, 1), (7, 3), (6, 3), (5, 8)])
def test_chunks_are_the_sequence_in_order_and_zeros(T, size):
    x_BTHK = torch.randn(2, T, 3, 4)
    chunks = to_chunks(x_BTHK, size)
    assert chunks.shape == (2, 3, math.ceil(T / size), size, 4)
    for t in range(T):
        assert torch.equal(chunks[:, :, t // size, t % size], x_BTHK[:, t])
    assert not chunks.flatten(2, 3)[:, :, T:].any()
    assert torch.equal(from_chunks(chunks, T), x_BTHK)
    assert torch.equal(to_chunks(x_BTHK[..., 0], size), chunks[..., 0])


def test_sums_by_hand():
    x = torch.tensor([1.0, 2.0, 4.0])
    inf = math.inf
    assert pair_sums(x).tolist() == [[0, -inf, -inf], [2, 0, -inf], [6, 4, 0]]
    assert sums_after(x[:, None])[:, 0].tolist() == [6, 4, 0]


def test_minus_infinity_gives_no_nan_and_small_sums_keep_their_digits():
    inf = math.inf
    x = torch.tensor([-1e8, -inf, -1e8, -1.0, -2.0])
    sums = pair_sums(x)
    assert sums[4].tolist() == [-inf, -1e8, -3, -2, 0]
    assert sums[1].tolist() == [-inf, 0, -inf, -inf, -inf]
    assert sums_after(x[:, None])[:, 0].tolist() == [-inf, -1e8, -3, -2, 0]
