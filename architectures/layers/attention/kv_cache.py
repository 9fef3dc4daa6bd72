"""KV caches of one attention layer: streams of past tokens, and the position of each token.

A cache holds streams, one vector for each token and head: keys and values, or
the latents of multi-head latent attention. ``append`` receives those of the next
tokens and returns those of all tokens that are still visible, with their positions.

Shapes: B batch, G key/value heads, T new tokens, S slots, E width of a stream; P blocks of the pool of a
paged cache, Z block size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter

import torch
from torch import Tensor

from archbench.architectures.layers.context import Context

EMPTY = -1
"""Position of an empty slot."""


class Cache(ABC):
    """Past streams of one layer."""

    @abstractmethod
    def append(self, streams_BGTE: list[Tensor], context: Context) -> tuple[list[Tensor], Tensor]:
        """Streams (B, G, S, E) of the past and the new tokens, and the position of each slot.

        Positions are (B, S), or (1, S) where all rows agree and every slot is filled. A slot that is
        empty has position -1; one that is not filled yet may also have a position above the row's last.
        """

    @abstractmethod
    def select(self, rows: list[int]) -> Cache:
        """Return the cache with row ``rows[i]`` as row i; this one must not be used afterwards."""

    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes of its tensors."""


class ContiguousCache(Cache):
    """A buffer for each stream with space for ``capacity`` tokens, filled from the left."""

    def __init__(self, batch_size: int, heads: int, widths: list[int], capacity: int, like: Tensor) -> None:
        self.capacity = capacity
        self.streams = [like.new_zeros(batch_size, heads, capacity, width) for width in widths]

    def append(self, streams_BGTE: list[Tensor], context: Context) -> tuple[list[Tensor], Tensor]:
        end = self.store(streams_BGTE, context)
        positions_1S = torch.arange(end, device=streams_BGTE[0].device)[None]
        return [stream[:, :, :end] for stream in self.streams], positions_1S

    def store(self, streams_BGTE: list[Tensor], context: Context) -> int:
        """Store each token at the slot of its position; return the number of slots in use."""
        if context.start is not None:
            end = context.start + streams_BGTE[0].shape[2]
            check_room(self.capacity, end)
            for stored, new in zip(self.streams, streams_BGTE, strict=True):
                stored[:, :, context.start : end] = new
            return end
        rows_N, tokens_N, slots_N = token_slots(context, streams_BGTE[0].shape[0])
        end = int(slots_N.max()) + 1 if len(slots_N) else 1
        check_room(self.capacity, end)
        for stored, new in zip(self.streams, streams_BGTE, strict=True):
            stored[rows_N, :, slots_N] = new[rows_N, :, tokens_N]
        # Another row may reach further than the tokens stored now.
        return min(self.capacity, int(context.positions_BT.max()) + 1)

    def select(self, rows: list[int]) -> Cache:
        self.streams = [stream[rows] for stream in self.streams]
        return self

    def num_bytes(self) -> int:
        return sum(stream.numel() * stream.element_size() for stream in self.streams)


class Int8Cache(ContiguousCache):
    """Streams as 8-bit integers, with one float32 scale for each token and head."""

    def __init__(self, batch_size: int, heads: int, widths: list[int], capacity: int, like: Tensor) -> None:
        super().__init__(batch_size, heads, widths, capacity, like.to(torch.int8))
        scales = [torch.zeros(batch_size, heads, capacity, 1, device=like.device) for _ in widths]
        self.streams += scales

    def append(self, streams_BGTE: list[Tensor], context: Context) -> tuple[list[Tensor], Tensor]:
        dtype, count = streams_BGTE[0].dtype, len(streams_BGTE)
        pairs = [quantise(stream) for stream in streams_BGTE]
        streams, positions_BS = super().append([p[0] for p in pairs] + [p[1] for p in pairs], context)
        return [
            (values.to(dtype) * scale.to(dtype))
            for values, scale in zip(streams[:count], streams[count:], strict=True)
        ], positions_BS


def quantise(x_BGTE: Tensor) -> tuple[Tensor, Tensor]:
    """Return symmetric 8-bit integers and the scale that restores the vector, to half a step."""
    scale_BGT1 = x_BGTE.abs().amax(-1, keepdim=True).float() / 127
    rounded = (x_BGTE / scale_BGT1.clamp_min(torch.finfo(torch.float32).tiny)).round()
    return rounded.to(torch.int8), scale_BGT1


class RingCache(Cache):
    """The last ``window`` tokens: position p is stored in slot p modulo the window."""

    def __init__(self, batch_size: int, heads: int, widths: list[int], window: int, like: Tensor) -> None:
        self.window = window
        self.streams = [like.new_zeros(batch_size, heads, window, width) for width in widths]
        self.positions_BS = torch.full((batch_size, window), EMPTY, dtype=torch.int32, device=like.device)

    def append(self, streams_BGTE: list[Tensor], context: Context) -> tuple[list[Tensor], Tensor]:
        T = streams_BGTE[0].shape[2]
        if T == 1 and context.start is not None:
            slot, used = context.start % self.window, min(context.start + 1, self.window)
            self.positions_BS[:, slot] = context.start
            for stored, new in zip(self.streams, streams_BGTE, strict=True):
                stored[:, :, slot] = new[:, :, 0]
            return [stream[:, :, :used] for stream in self.streams], self.positions_BS[:1, :used]
        # A piece of multiple tokens attends to the past window and itself; only its end is stored.
        B = streams_BGTE[0].shape[0]
        new_BT = context.positions_BT.expand(B, -1).to(torch.int32)
        if context.valid_BT is not None:
            new_BT = new_BT.masked_fill(~context.valid_BT, EMPTY)
        seen = [torch.cat([old, new], dim=2) for old, new in zip(self.streams, streams_BGTE, strict=True)]
        positions_BS = torch.cat([self.positions_BS, new_BT], dim=1)
        stored_BT = (new_BT > new_BT.amax(1, keepdim=True) - self.window) & (new_BT != EMPTY)
        rows_N, tokens_N = stored_BT.nonzero(as_tuple=True)
        slots_N = new_BT[rows_N, tokens_N].long() % self.window
        self.positions_BS[rows_N, slots_N] = new_BT[rows_N, tokens_N]
        for stored, new in zip(self.streams, streams_BGTE, strict=True):
            stored[rows_N, :, slots_N] = new[rows_N, :, tokens_N]
        return seen, positions_BS

    def select(self, rows: list[int]) -> Cache:
        self.streams = [stream[rows] for stream in self.streams]
        self.positions_BS = self.positions_BS[rows]
        return self

    def num_bytes(self) -> int:
        tensors = [*self.streams, self.positions_BS]
        return sum(t.numel() * t.element_size() for t in tensors)


def token_slots(context: Context, batch_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return row, index and position of each valid new token, (N,) each."""
    positions_BT = context.positions_BT.expand(batch_size, -1)
    valid_BT = torch.ones_like(positions_BT, dtype=torch.bool)
    if context.valid_BT is not None:
        valid_BT = context.valid_BT
    rows_N, tokens_N = valid_BT.nonzero(as_tuple=True)
    return rows_N, tokens_N, positions_BT[rows_N, tokens_N]


def check_room(capacity: int, end: int) -> None:
    """Raise ValueError if ``end`` tokens exceed the capacity of a cache."""
    if end > capacity:
        raise ValueError(f"the cache has room for {capacity} tokens, not for {end}")


class PagedCache(Cache):
    """Tokens in blocks of fixed size, allocated as needed, from one pool of blocks for each stream.

    Kwon et al. 2023 (PagedAttention, arXiv 2309.06180). Each sequence has a table of blocks; rows with a
    common beginning share blocks until one of them writes, which then makes a copy. At most one block of each
    sequence is partly empty.
    """

    def __init__(
        self,
        batch_size: int,
        heads: int,
        widths: list[int],
        capacity: int,
        like: Tensor,
        *,
        block_size: int,
    ) -> None:
        self.block_size = block_size
        self.capacity = capacity
        self.pools = [like.new_zeros(0, heads, block_size, width) for width in widths]
        self.tables: list[list[int]] = [[] for _ in range(batch_size)]
        self.users: Counter[int] = Counter()
        """Number of sequences that use each block."""
        self.free: list[int] = []

    def append(self, streams_BGTE: list[Tensor], context: Context) -> tuple[list[Tensor], Tensor]:
        rows_N, tokens_N, positions_N = token_slots(context, len(self.tables))
        if len(positions_N):
            check_room(self.capacity, int(positions_N.max()) + 1)
        self._make_room(rows_N.tolist(), positions_N.tolist())
        device = streams_BGTE[0].device
        # Rows with fewer blocks repeat block 0, which is masked.
        longest = max(len(table) for table in self.tables)
        padded = [table + [0] * (longest - len(table)) for table in self.tables]
        table_BP = torch.tensor(padded, dtype=torch.int64, device=device)
        blocks_N = table_BP[rows_N, positions_N // self.block_size]
        slots_N = positions_N % self.block_size
        for pool, new in zip(self.pools, streams_BGTE, strict=True):
            pool[blocks_N, :, slots_N] = new[rows_N, :, tokens_N]
        # Uniform rows get exactly their tokens, other rows full blocks, with their end masked by position.
        capacity = table_BP.shape[1] * self.block_size
        end = capacity if context.start is None else context.start + streams_BGTE[0].shape[2]
        gathered = [pool[table_BP].transpose(1, 2).flatten(2, 3)[:, :, :end] for pool in self.pools]
        return gathered, torch.arange(end, device=device)[None]

    def select(self, rows: list[int]) -> Cache:
        tables = [list(self.tables[row]) for row in rows]
        for block in (block for table in tables for block in table):
            self.users[block] += 1
        for block in (block for table in self.tables for block in table):
            self.users[block] -= 1
            if self.users[block] == 0:
                del self.users[block]
                self.free.append(block)
        self.tables = tables
        return self

    def num_bytes(self) -> int:
        return sum(pool.numel() * pool.element_size() for pool in self.pools)

    @property
    def blocks_in_use(self) -> int:
        """Number of blocks that at least one sequence uses."""
        return len(self.users)

    def _make_room(self, rows: list[int], positions: list[int]) -> None:
        """Allocate unshared blocks in every sequence for the next tokens."""
        touched = sorted({(row, p // self.block_size) for row, p in zip(rows, positions, strict=True)})
        self._grow(touched)
        for row, index in touched:
            table = self.tables[row]
            if index == len(table):
                table.append(self._take())
            elif self.users[table[index]] > 1:
                mine = self._take()
                for pool in self.pools:
                    pool[mine] = pool[table[index]]
                self.users[table[index]] -= 1
                table[index] = mine

    def _grow(self, touched: list[tuple[int, int]]) -> None:
        """Enlarge the pools by exactly the missing blocks."""
        shared = self.users.copy()
        needed = 0
        for row, index in touched:
            if index >= len(self.tables[row]):
                needed += 1
            elif shared[self.tables[row][index]] > 1:
                shared[self.tables[row][index]] -= 1
                needed += 1
        missing = needed - len(self.free)
        if missing > 0:
            num_blocks = self.pools[0].shape[0]
            self.pools = [torch.cat([p, p.new_zeros(missing, *p.shape[1:])]) for p in self.pools]
            self.free += range(num_blocks, num_blocks + missing)

    def _take(self) -> int:
        block = self.free.pop(0)
        self.users[block] = 1
        return block
