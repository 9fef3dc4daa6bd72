"""Caches by themselves. Shapes: B batch, G heads, T tokens, S slots, E width."""

import random

import pytest
import torch

from archbench.architectures.layers.attention.kv_cache import (
    Cache,
    ContiguousCache,
    Int8Cache,
    PagedCache,
    RingCache,
    quantise,
)
from archbench.architectures.layers.context import Context

LIKE = torch.zeros(1, dtype=torch.float64)


def streams(B: int, T: int, widths=(3, 2)) -> list[torch.Tensor]:
    return [torch.randn(B, 2, T, width, dtype=torch.float64) for width in widths]


def following(lengths: list[int], T: int, valid_BT=None) -> Context:
    return Context.next(torch.zeros(len(lengths), T, dtype=torch.long), lengths, valid_BT)


def make(kind: str, B: int, capacity: int) -> Cache:
    if kind == "paged":
        return PagedCache(B, 2, [3, 2], capacity, LIKE, block_size=4)
    if kind == "ring":
        return RingCache(B, 2, [3, 2], 5, LIKE)
    return ContiguousCache(B, 2, [3, 2], capacity, LIKE)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("kind", ["contiguous", "paged", "ring"])
def test_a_cache_holds_what_was_put_in(kind: str, ragged: bool):
    """Pieces of random lengths, against lists of what each row was given."""
    rng, B = random.Random(0), 3
    cache = make(kind, B, 64)
    told: list[list[list[torch.Tensor]]] = [[], [], []]
    lengths = [0] * B
    for T in (3, 1, 6, 1, 1, 2, 9, 1):
        new = streams(B, T)
        counts = [rng.randint(0, T) for _ in range(B)] if ragged else [T] * B
        valid = torch.arange(T) < torch.tensor(counts)[:, None] if ragged else None
        context = following(lengths, T, valid)
        found, positions_BS = cache.append(new, context)
        for b in range(B):
            told[b] += [[stream[b, :, t] for stream in new] for t in range(counts[b])]
            slot_positions = positions_BS.expand(B, -1)[b].tolist()
            last = lengths[b] + counts[b] - 1
            seen = {p: s for s, p in enumerate(slot_positions) if 0 <= p <= last}
            first = max(0, lengths[b] - 4) if kind == "ring" else 0
            for position in range(first, last + 1):
                for stream, expected in zip(found, told[b][position], strict=True):
                    assert torch.equal(stream[b, :, seen[position]], expected)
        lengths = [length + count for length, count in zip(lengths, counts, strict=True)]


def test_a_ring_keeps_the_window_and_no_more():
    cache = RingCache(2, 2, [3, 2], 5, LIKE)
    for start in range(12):
        _, positions_1S = cache.append(streams(2, 1), following([start, start], 1))
        assert sorted(positions_1S[0].tolist()) == list(range(max(0, start - 4), start + 1))
    assert cache.num_bytes() == 2 * 5 * (2 * (3 + 2) * 8 + 4)


def test_blocks_are_taken_as_they_are_needed():
    """Never more than one block of a sequence is partly empty."""
    cache = PagedCache(2, 2, [3], 64, LIKE, block_size=4)
    for start in range(11):
        cache.append(streams(2, 1, (3,)), following([start, start], 1))
        assert cache.blocks_in_use == 2 * -(-(start + 1) // 4)
        assert cache.num_bytes() == cache.blocks_in_use * 4 * 2 * 3 * 8


def test_a_shared_prefix_is_held_once_until_a_row_writes():
    cache: Cache = PagedCache(1, 2, [3, 2], 64, LIKE, block_size=4)
    assert isinstance(cache, PagedCache)
    cache.append(streams(1, 10), following([0], 10))
    assert cache.blocks_in_use == 3
    cache.select([0, 0, 0])
    assert cache.blocks_in_use == 3
    before = [pool[cache.tables[0][0]].clone() for pool in cache.pools]
    found, _ = cache.append(streams(3, 1), following([10, 10, 10], 1))
    # The two full blocks are shared still, the half-full one was copied for all but the last to write.
    assert cache.blocks_in_use == 2 + 3
    assert cache.tables[0][:2] == cache.tables[1][:2] == cache.tables[2][:2]
    assert len({table[2] for table in cache.tables}) == 3
    for pool, old in zip(cache.pools, before, strict=True):
        assert torch.equal(pool[cache.tables[2][0]], old)
    for stream in found:
        assert torch.equal(stream[0, :, :10], stream[2, :, :10])
        assert not torch.equal(stream[0, :, 10], stream[2, :, 10])


def test_blocks_of_dropped_rows_are_used_again():
    cache: Cache = PagedCache(3, 2, [3], 64, LIKE, block_size=4)
    assert isinstance(cache, PagedCache)
    cache.append(streams(3, 8, (3,)), following([0, 0, 0], 8))
    held = cache.num_bytes()
    cache.select([1])
    assert cache.blocks_in_use == 2
    cache.append(streams(1, 16, (3,)), following([8], 16))
    assert cache.num_bytes() == held


@pytest.mark.parametrize("kind", ["contiguous", "paged", "ring"])
def test_selecting_rows_is_having_had_only_those(kind: str):
    torch.manual_seed(1)
    first, second = streams(3, 7), streams(3, 2)
    cache, rows = make(kind, 3, 32), [2, 0, 2]
    cache.append(first, following([7 - 7] * 3, 7))
    cache = cache.select(rows)
    found, positions = cache.append(second, following([7] * 3, 2))
    other = make(kind, 3, 32)
    other.append([stream[rows] for stream in first], following([0] * 3, 7))
    expected, expected_positions = other.append(second, following([7] * 3, 2))
    assert torch.equal(positions, expected_positions)
    for one, two in zip(found, expected, strict=True):
        assert torch.equal(one, two)


def test_int8_is_exact_to_half_a_step():
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64) * torch.tensor([1e-3, 1.0, 1e3])[:, None, None]
    whole, scale = quantise(x)
    assert whole.dtype == torch.int8
    assert scale.shape == (2, 3, 5, 1)
    assert ((whole * scale - x).abs() <= 0.5001 * scale).all()
    assert quantise(torch.zeros(1, 1, 1, 4))[0].eq(0).all()
    cache = Int8Cache(2, 3, [8], 5, LIKE)
    found, _ = cache.append([x], following([0, 0], 5))
    torch.testing.assert_close(found[0], (whole * scale).double())
    assert cache.num_bytes() == 2 * 3 * 5 * (8 + 4)


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@pytest.mark.parametrize("ragged", [False, True])
def test_a_full_cache_refuses(kind: str, ragged: bool):
    cache = make(kind, 2, 6)
    valid = torch.ones(2, 7, dtype=torch.bool) if ragged else None
    with pytest.raises(ValueError, match="room for 6 tokens, not for 7"):
        cache.append(streams(2, 7), following([0, 0], 7, valid))
