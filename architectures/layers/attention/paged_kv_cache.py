"""A paged cache: tokens are stored in blocks of fixed size, allocated as needed.

Kwon et al. 2023 (PagedAttention, arXiv 2309.06180). Each sequence has a table of
blocks; rows with a common beginning share blocks until one of them writes, which then
makes a copy. At most one block of each sequence is partly empty.

Shapes: B batch, G key/value heads, T new tokens, S slots, E width of a stream,
P blocks of the pool, Z block size.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from architectures.layers.attention.kv_cache import Cache, check_room, token_slots
from architectures.layers.context import Context


class PagedCache(Cache):
    """Block tables over one pool of blocks for each stream."""

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
        """Number of sequences that hold each block."""
        self.free: list[int] = []

    def append(self, streams_BGTE: list[Tensor], context: Context) -> tuple[list[Tensor], Tensor]:
        rows_N, tokens_N, positions_N = token_slots(context, len(self.tables))
        if len(positions_N):
            check_room(self.capacity, int(positions_N.max()) + 1)
        self._make_room(rows_N.tolist(), positions_N.tolist())
        device = streams_BGTE[0].device
        table_BP = self._table(device)
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
        for table in self.tables:
            self._release(table)
        self.tables = tables
        return self

    def num_bytes(self) -> int:
        return sum(pool.numel() * pool.element_size() for pool in self.pools)

    @property
    def blocks_in_use(self) -> int:
        """Blocks that at least one sequence holds."""
        return len(self.users)

    def _table(self, device: torch.device) -> Tensor:
        """Block tables (B, longest); rows that hold fewer blocks repeat block 0, which is masked."""
        longest = max(len(table) for table in self.tables)
        padded = [table + [0] * (longest - len(table)) for table in self.tables]
        return torch.tensor(padded, dtype=torch.int64, device=device)

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

    def _release(self, table: list[int]) -> None:
        for block in table:
            self.users[block] -= 1
            if self.users[block] == 0:
                del self.users[block]
                self.free.append(block)
