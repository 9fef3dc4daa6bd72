"""Base of every type of softmax attention: masks, the choice of a kernel, caches, pairs.

Shapes: B batch, T queries, S keys, H query heads, G key/value heads, E width of
queries and keys, F width of values.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from archbench.architectures.fast_paths import path
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.attention.functional import (
    FLEX_WIDTH,
    Once,
    Scores,
    attend,
    attention_mask,
    without_cudnn,
)
from archbench.architectures.layers.attention.kv_cache import (
    EMPTY,
    Cache,
    ContiguousCache,
    Int8Cache,
    PagedCache,
    RingCache,
)
from archbench.architectures.layers.block import Mixer
from archbench.architectures.layers.context import Context


class SoftmaxAttention(Mixer):
    """Base class of softmax attention: masks, kernels, caches."""

    accepts_low_precision_input = True
    causal: bool
    window: int | None
    head_dim: int
    positional: bool
    """True where this layer uses the model's rotary embedding or score bias."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        self.config = config
        self.sink_H: Tensor | None = None
        self.own_bias: nn.Module | None = None
        """The bias of scores by position of only this layer."""

    def kernel(self, *, masked: bool, cuda: bool, native: bool = False) -> str:
        """Return the implementation that runs, which is recorded with a run.

        ``native``: the C++ kernels take such tensors. Of two that may run by the sizes of a batch, it is the
        first: ``cpp`` is the C++ kernel where it is faster, else PyTorch's.
        """
        c = self.config
        if c.kernel != "auto":
            return c.kernel
        special = not c.sinks and not (c.dropout and self.training)
        if cuda and special and self.narrowest() >= FLEX_WIDTH and (masked or c.softcap is not None):
            return "flex"
        if native and special:
            return "cpp"
        return "sdpa" if c.softcap is None else "reference"

    def narrowest(self) -> int:
        """Return the smaller width of the queries and the values of a head."""
        return self.head_dim

    def scale(self) -> float:
        """Return the factor of q k^T."""
        return self.head_dim**-0.5 if self.config.scale is None else self.config.scale

    def attend_whole(
        self, q_BHTE: Tensor, k_BGTE: Tensor, v_BGTF: Tensor, context: Context, bias: Tensor | None = None
    ) -> Tensor:
        """Self-attention over full sequences; ``bias`` (B, H, T, T) is added to the scores."""
        if context.lengths is not None:
            return self._attend_unpadded(q_BHTE, k_BGTE, v_BGTF, context)
        T = q_BHTE.shape[2]
        window = None if self.window is None or self.window // (1 if self.causal else 2) >= T else self.window
        bias = self._bias(context.positions_BT, context.positions_BT, context, "self", bias)
        plain = context.plain and window is None and bias is None
        mask = None
        if not plain and not (context.plain and window is None and not self.causal):
            mask = context.once(("mask", self.causal, window), lambda: self._mask(context, window))
        once = functools.partial(context.once, ("blocks", self.causal, window, q_BHTE.shape[0]))
        causal = plain and self.causal
        return self._attend(q_BHTE, k_BGTE, v_BGTF, causal=causal, mask=mask, bias=bias, once=once)

    def attend_cached(self, q_BHTE: Tensor, streams: list[Tensor], cache: Cache, context: Context) -> Tensor:
        """Attention of new tokens to the cached ones and themselves; ``streams`` are keys and values."""
        (k_BGSE, v_BGSF), key_BS = cache.append(streams, context)
        return self.attend_to(q_BHTE, k_BGSE, v_BGSF, key_BS, context)

    def attend_to(
        self,
        q_BHTE: Tensor,
        k_BGSE: Tensor,
        v_BGSF: Tensor,
        key_BS: Tensor,
        context: Context,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Attention of new tokens to slots of a cache at positions ``key_BS``; ``bias`` (B, H, T, S) is
        added to the scores."""
        T, S = q_BHTE.shape[2], k_BGSE.shape[2]
        uniform = context.start is not None and key_BS.shape[0] == 1
        bias = self._bias(context.positions_BT, key_BS, context, ("cache", self.window, S), bias)
        reach_BT = context.positions_BT if context.reach_BT is None else context.reach_BT
        mask = None
        # The first tokens of all sequences, with an empty cache: the plain causal mask.
        is_first = uniform and context.plain and T == S > 1 and context.reach_BT is None
        if is_first and self.window is None and bias is None:
            once = functools.partial(context.once, ("blocks", True, None, q_BHTE.shape[0]))
            return self._attend(q_BHTE, k_BGSE, v_BGSF, causal=True, once=once)
        # One new token that may attend to the full cache needs no mask.
        if not (uniform and T == 1 and (self.window is None or self.window >= S)):
            mask = context.once(
                ("cache mask", self.window, S),
                lambda: attention_mask(reach_BT, key_BS, causal=True, window=self.window, empty=EMPTY),
            )
        once = functools.partial(context.once, ("cache blocks", self.window, S, q_BHTE.shape[0]))
        return self._attend(q_BHTE, k_BGSE, v_BGSF, mask=mask, bias=bias, once=once)

    def _attend(
        self,
        q_BHTE: Tensor,
        k_BGSE: Tensor,
        v_BGSF: Tensor,
        *,
        causal: bool = False,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        once: Once | None = None,
    ) -> Tensor:
        c = self.config
        scores = Scores(
            scale=self.scale(),
            softcap=c.softcap,
            dropout=c.dropout if self.training else 0.0,
        )
        # The mask of a single query is small, and a block mask would be built again for each.
        many = q_BHTE.shape[2] > 1
        native = many and path(q_BHTE, k_BGSE, v_BGSF) == "cpp"
        kernel = self.kernel(masked=mask is not None and many, cuda=q_BHTE.is_cuda, native=native)
        return attend(
            q_BHTE,
            k_BGSE,
            v_BGSF,
            scores,
            kernel=kernel,
            causal=causal,
            mask=mask,
            bias=bias,
            sink_H=self.sink_H,
            once=once,
        )

    def _attend_unpadded(self, q_BHTE: Tensor, k_BGTE: Tensor, v_BGTF: Tensor, context: Context) -> Tensor:
        """Attend within each document, without computing pairs that are masked."""
        assert context.lengths is not None

        def document_context(length: int) -> Context:
            positions_1T = torch.arange(length, device=q_BHTE.device)[None]
            return Context(positions_BT=positions_1T, score_bias=context.score_bias)

        parts = zip(*(x.split(context.lengths, dim=2) for x in (q_BHTE, k_BGTE, v_BGTF)), strict=True)
        pieces = []
        with without_cudnn(q_BHTE):
            for q, k, v in parts:
                document = context.once(
                    ("document", q.shape[2]), functools.partial(document_context, q.shape[2])
                )
                pieces.append(self.attend_whole(q, k, v, document))
        return torch.cat(pieces, dim=2)

    def _mask(self, context: Context, window: int | None) -> Tensor:
        """True where a token may look: by position, document and validity."""
        positions_BT = context.positions_BT
        mask_B1TS = attention_mask(positions_BT, positions_BT, causal=self.causal, window=window)
        if context.documents_BT is not None:
            same_BTS = context.documents_BT[:, :, None] == context.documents_BT[:, None, :]
            mask_B1TS = mask_B1TS & same_BTS[:, None]
        if context.visible is not None:
            mask_B1TS = mask_B1TS & context.visible
        if context.valid_BT is not None:
            mask_B1TS = mask_B1TS & context.valid_BT[:, None, None, :]
        return mask_B1TS

    def _bias(
        self, query_BT: Tensor, key_BS: Tensor, context: Context, key: Any, added: Tensor | None
    ) -> Tensor | None:
        """Return the bias of positions, which layers share under ``key``, plus ``added``."""
        module = self.own_bias
        if module is not None:
            bias = module(query_BT, key_BS)
        elif (module := context.score_bias) is not None and self.positional:
            bias = context.once(("bias", key), functools.partial(module, query_BT, key_BS))
        else:
            return added
        return bias if added is None else bias + added

    def make_cache(
        self, batch_size: int, capacity: int, heads: int, widths: list[int], like: Tensor
    ) -> Cache:
        """Return an empty cache of the configured type."""
        c = self.config
        if c.cache == "paged":
            return PagedCache(batch_size, heads, widths, capacity, like, block_size=c.block_size)
        if c.cache == "int8":
            return Int8Cache(batch_size, heads, widths, capacity, like)
        if self.window is not None and self.window < capacity:
            return RingCache(batch_size, heads, widths, self.window, like)
        return ContiguousCache(batch_size, heads, widths, capacity, like)

    def cache_bytes(self, length: int, heads: int, widths: list[int], bytes_per_element: int) -> int:
        """Bytes of that cache for one sequence of ``length`` tokens, with capacity for exactly these."""
        c = self.config
        slot = heads * sum(widths) * bytes_per_element
        if c.cache == "paged":
            return -(-length // c.block_size) * c.block_size * slot
        if c.cache == "int8":
            return length * heads * (sum(widths) + 4 * len(widths))
        if self.window is not None and self.window < length:
            return self.window * (slot + 4)  # and the position of each slot
        return length * slot

    def pairs(self, length: int) -> int:
        """(query, key) pairs of one sequence that the mask allows."""
        if self.window is None:
            return length * (length + 1) // 2 if self.causal else length * length
        if self.causal:
            near = min(length, self.window)
            return near * (near + 1) // 2 + (length - near) * near
        reach = min(self.window // 2, length - 1)
        return length * (2 * reach + 1) - reach * (reach + 1)
