"""The steps of ``generate``, from a token to the next logits: ``Backbone.step``, or a CUDA graph of one.

``Backbone.step`` reads the filled part of a cache, so that its shapes grow with the text. A CUDA graph
repeats operations of fixed shapes: in ``StaticDecoder`` the position is the value of a tensor, every slot of
a cache is read, and those after the position are masked. The token is the same up to rounding. Reading the
full cache costs more time, and a graph saves a GPU some hundred launches.

Models need no changes for this: static caches replace those of a decoding state.

Shapes: B rows at the beginning, N rows that go on, V vocabulary, G key/value heads, S slots, E width of a
stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from archbench.architectures import fast_paths
from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.encoder_decoder import EncoderDecoder
from archbench.architectures.backbones.stack import Stack
from archbench.architectures.decoding_state import DecodingState
from archbench.architectures.layers.attention.base import SoftmaxAttention
from archbench.architectures.layers.attention.kv_cache import (
    Cache,
    ContiguousCache,
    Int8Cache,
    RingCache,
    check_room,
    quantise,
)
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.mixture_of_depths import RoutedBlock
from archbench.architectures.layers.moe.experts import Experts

FEWEST = 32
"""Tokens from which on a graph is captured: capturing costs the time of a few steps."""


class Steps:
    """Steps of the backbone. Rows that have ended leave the decoding state."""

    def __init__(self, model: Backbone, state: DecodingState) -> None:
        self._model, self._state = model, state

    def select(self, rows: list[int]) -> None:
        """Go on with these of the rows that go on so far, in their order."""
        self._state.select(rows)

    def __call__(self, token_N: Tensor) -> Tensor:
        """Return logits (N, V) after one more token of every row."""
        return self._model.step(token_N[:, None], self._state)[:, -1]


class StaticSteps(Steps):
    """Steps of fixed shapes. Rows that have ended stay in the batch, but their tokens are ignored."""

    def __init__(self, decoder: StaticDecoder) -> None:
        self._decoder = decoder
        self._row_N = torch.arange(len(decoder.token_B1), device=decoder.token_B1.device)

    def select(self, rows: list[int]) -> None:
        self._row_N = self._row_N[rows]

    def __call__(self, token_N: Tensor) -> Tensor:
        """Return logits (N, V) after one more token of every row."""
        token_B1 = self._decoder.token_B1.index_copy(0, self._row_N, token_N[:, None])
        return self._decoder(token_B1)[self._row_N, -1]


def make_steps(model: Backbone, state: DecodingState, tokens: int) -> Steps:
    """Return the steps by which up to ``tokens`` more are decoded; ``state`` must not be used afterwards.

    A CUDA graph, for a model on a GPU that one process decodes, where a step has fixed shapes
    (``problem``) and there are many tokens; else those of the backbone. Both give the same
    logits up to rounding. ``device.kernels=torch`` disables graphs.
    """
    if tokens < FEWEST or not captures(next(model.parameters()).device) or problem(model, state):
        return Steps(model, state)
    decoder = StaticDecoder(model, state, tokens)
    decoder.capture()
    return StaticSteps(decoder)


def captures(device: torch.device) -> bool:
    """Return True where steps on this device may be captured: on a GPU, and not between processes."""
    shared = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return device.type == "cuda" and not shared and fast_paths.chosen() != "torch"


WARMUP = 3
"""Steps before one is recorded, in which libraries choose their kernels; PyTorch advises as many."""
WITHOUT_WAITS = ("grouped", "reference")
"""Dispatch methods of experts without reads by the host and with fixed shapes."""


def problem(model: Backbone, state: DecodingState) -> str:
    """Return why the next tokens cannot be decoded by operations of fixed shapes; empty where they can.

    This does not read from the device.
    """
    if not isinstance(model, Stack | EncoderDecoder) or model.capabilities.blockwise:
        return "it takes a stack of blocks or an encoder-decoder that reads one token at a time"
    if model.training:
        return "the model is in training"
    if isinstance(model, Stack) and model.reread_length() is not None:
        return "the rotary frequencies of longrope change with the length"
    if len(set(state.lengths)) != 1:
        return "the rows have read different numbers of tokens"
    if any(not isinstance(cache, ContiguousCache | RingCache) for cache in _caches(state.layers)):
        return "a paged cache grows: set attention.cache=contiguous"
    for part in model.modules():
        if isinstance(part, RoutedBlock):
            return "the host must know how many tokens each block takes"
        if isinstance(part, Experts):
            c = part.config
            limited = c.capacity is not None or c.choice == "expert"
            if part.path(part.up_XFD) not in WITHOUT_WAITS or limited or part.exchange is not None:
                return "the host must know how many tokens each expert takes"
            if part.watcher is not None:
                return "the host records where each token is routed"
        if isinstance(part, SoftmaxAttention) and part.kernel(masked=False, cuda=True) == "flex":
            return "FlexAttention builds its block mask again in each step"
    return ""


class StaticCache(Cache):
    """A cache that stores one token of every row at the position (1, 1) in ``context.positions_BT``."""

    def __init__(self, cache: ContiguousCache | RingCache) -> None:
        self.cache = cache

    def append(self, streams_BGTE: list[Tensor], context: Context) -> tuple[list[Tensor], Tensor]:
        cache, position_1 = self.cache, context.positions_BT[0]
        if isinstance(cache, RingCache):
            slot_1 = position_1 % cache.window
            cache.positions_BS.index_copy_(1, slot_1, position_1.int().expand(len(cache.positions_BS), 1))
            _put(cache.streams, streams_BGTE, slot_1)
            return cache.streams, cache.positions_BS[:1]
        slots_1S = torch.arange(cache.capacity, device=position_1.device)[None]
        if not isinstance(cache, Int8Cache):
            _put(cache.streams, streams_BGTE, position_1)
            return cache.streams, slots_1S
        dtype, count = streams_BGTE[0].dtype, len(streams_BGTE)
        values, scales = zip(*(quantise(stream) for stream in streams_BGTE), strict=True)
        _put(cache.streams, [*values, *scales], position_1)
        stored = zip(cache.streams[:count], cache.streams[count:], strict=True)
        return [value.to(dtype) * scale.to(dtype) for value, scale in stored], slots_1S

    def select(self, rows: list[int]) -> Cache:
        raise AssertionError("the rows of a step of fixed shapes stay")

    def num_bytes(self) -> int:
        return self.cache.num_bytes()


class StaticDecoder:
    """Continues a decoding state, all rows of which have read as many tokens."""

    def __init__(self, model: Backbone, state: DecodingState, tokens: int) -> None:
        """``state`` must not be used afterwards: its tensors are written to.

        Args:
            model: in evaluation.
            state: of the model, with space for ``tokens`` more.
            tokens: that are decoded at most.

        Raises:
            ValueError: there are no steps of fixed shapes for them, or no space.
        """
        if reason := problem(model, state):
            raise ValueError(f"no step of fixed shapes: {reason}")
        assert isinstance(model, Stack | EncoderDecoder)
        device = next(model.parameters()).device
        self.capacity = state.length + tokens
        for cache in _caches(state.layers):
            if isinstance(cache, ContiguousCache):
                check_room(cache.capacity, self.capacity)
        self.model = model
        self.score_bias = model.score_bias if isinstance(model, Stack) else model.decoder_bias
        self.state = DecodingState(lengths=state.lengths, layers=[_static(layer) for layer in state.layers])
        self.position_1 = torch.tensor([state.length], device=device)
        self.token_B1 = torch.zeros(len(state.lengths), 1, dtype=torch.int64, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.logits_B1V: Tensor | None = None

    def __call__(self, token_B1: Tensor) -> Tensor:
        """Return logits (B, 1, V) of the next token. After ``capture`` the next call overwrites them."""
        check_room(self.capacity, self.state.length + 1)
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
        context = Context(positions_BT=self.position_1[None], start=None, score_bias=self.score_bias)
        logits_B1V = self.model.step_with_context(context, self.token_B1, self.state)
        self.position_1.add_(1)
        return logits_B1V

    @torch.no_grad()
    def capture(self) -> None:
        """Record a step as a CUDA graph, which ``__call__`` repeats; the state is unchanged.

        The keys and values that a trial leaves in a slot are overwritten before they are read; recurrent
        states are restored. Under autocast the weights that were cast in a trial are read by the graph: it
        must not outlive the outermost autocast context, which owns them.
        """
        check_room(self.capacity, self.state.length + 1)
        recurrent = [leaf for leaf in _leaves(self.state.layers) if isinstance(leaf, Tensor)]  # not caches
        saved = [(tensor, tensor.clone()) for tensor in (self.position_1, *recurrent)]

        def restore() -> None:
            for tensor, value in saved:
                tensor.copy_(value)

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP):
                self._run()
                restore()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.logits_B1V = self._run()
        self.graph = graph


def _put(streams_BGSE: list[Tensor], new_BG1E: list[Tensor], slot_1: Tensor) -> None:
    """Write one token of every row to the slot with the index ``slot_1``."""
    for stored, new in zip(streams_BGSE, new_BG1E, strict=True):
        stored.index_copy_(2, slot_1, new.to(stored.dtype))


def _static(value: Any) -> Any:
    """Return the state of a layer with static caches."""
    if isinstance(value, ContiguousCache | RingCache):
        return StaticCache(value)
    if isinstance(value, dict):
        return {name: _static(item) for name, item in value.items()}
    return [_static(item) for item in value] if isinstance(value, list) else value


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the leaves of nested dicts, lists and tuples."""
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    else:
        yield value


def _caches(value: Any) -> Iterator[Cache]:
    return (leaf for leaf in _leaves(value) if isinstance(leaf, Cache))
