"""One token after another by operations whose shapes never change, as a CUDA graph must repeat them.

``Backbone.step`` reads what is in a cache and no more, so that its shapes grow with the text. Here the
position is a number in a tensor: every slot of a cache is read, and those behind the position are masked. It
is the same token; it costs a pass over all the room there is, and spares a GPU some hundred launches.

Shapes: B batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from architectures.backbone import Backbone, DecodingState
from architectures.layers.attention.kv_cache import Cache, check_room
from architectures.layers.attention.paged_kv_cache import PagedCache

WARM = 3
"""Steps before one is recorded, in which libraries choose their kernels; PyTorch advises as many."""


class FixedStep:
    """Continues a decoding state, all rows of which have read as many tokens."""

    def __init__(self, model: Backbone, state: DecodingState, room: int) -> None:
        """``room`` is what the state was started with. Raises ValueError for what has no fixed shapes."""
        if model.capabilities.blockwise or len(set(state.lengths)) != 1:
            raise ValueError("a step of fixed shapes takes rows of one length, one token at a time")
        if any(isinstance(each, PagedCache) for each in _parts(state.layers)):
            raise ValueError("a paged cache grows: set attention.cache=contiguous for steps of fixed shapes")
        device = next(model.parameters()).device
        self.model, self.state, self.room = model, state, room
        self.position_1 = torch.tensor([state.length], device=device)
        self.token_B1 = torch.zeros(len(state.lengths), 1, dtype=torch.int64, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.logits_B1V: Tensor | None = None

    def __call__(self, token_B1: Tensor) -> Tensor:
        """Logits (B, 1, V) of the next token. After ``capture`` the next call writes over them."""
        check_room(self.room, self.state.length + 1)
        self.token_B1.copy_(token_B1)
        if self.graph is None:
            self.logits_B1V = self._run()
        else:
            self.graph.replay()
        self.state.lengths = [length + 1 for length in self.state.lengths]
        assert self.logits_B1V is not None
        return self.logits_B1V

    @torch.no_grad()
    def _run(self) -> Tensor:
        logits_B1V = self.model.step_at(self.token_B1, self.state, self.position_1)
        self.position_1.add_(1)
        return logits_B1V

    @torch.no_grad()
    def capture(self) -> None:
        """Records a step as a CUDA graph, which ``__call__`` repeats; the state stays as it is.

        Autocast must be off, or without its cache. What keys and values a trial leaves in a slot is
        overwritten before it is seen; recurrent states are put back.
        """
        check_room(self.room, self.state.length + 1)
        recurrent = [each for each in _parts(self.state.layers) if isinstance(each, Tensor)]
        kept = [(each, each.clone()) for each in (self.position_1, *recurrent)]

        def put_back() -> None:
            for each, before in kept:
                each.copy_(before)

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM):
                self._run()
                put_back()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.logits_B1V = self._run()
        self.graph = graph


def _parts(value: Any) -> Iterator[Tensor | Cache]:
    """Tensors and caches in the state of layers."""
    if isinstance(value, Tensor | Cache):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _parts(each)
