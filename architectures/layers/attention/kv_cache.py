"""KV caches of one attention layer: streams of past tokens, and the position of each token.

A cache holds streams, one vector for each token and head: keys and values, or
the latents of multi-head latent attention. ``append`` receives those of the next
tokens and returns those of all tokens that are still visible, with their positions.

Shapes: B batch, G key/value heads, T new tokens, S slots, E width of a stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from architectures.layers.context import Context

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
        self._keep_end(streams_BGTE, new_BT)
        return seen, positions_BS

    def _keep_end(self, streams_BGTE: list[Tensor], new_BT: Tensor) -> None:
        kept_BT = (new_BT > new_BT.amax(1, keepdim=True) - self.window) & (new_BT != EMPTY)
        rows_N, tokens_N = kept_BT.nonzero(as_tuple=True)
        slots_N = new_BT[rows_N, tokens_N].long() % self.window
        self.positions_BS[rows_N, slots_N] = new_BT[rows_N, tokens_N]
        for stored, new in zip(self.streams, streams_BGTE, strict=True):
            stored[rows_N, :, slots_N] = new[rows_N, :, tokens_N]

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
