"""Attention, dense feed-forwards and experts for one new token of each sequence, by the C++ kernels.

Shapes: B batch, D d_model, H query heads, R rotated dimensions, S slots, X experts.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from archbench.architectures.fast_paths import implements
from archbench.architectures.kernels.cpu.decode.dispatch import (
    DecodeSpec,
    LinearSpec,
    NormSpec,
    ResidualSpec,
    call,
)
from archbench.architectures.layers.attention.kv_cache import ContiguousCache, check_room
from archbench.architectures.layers.block import UnsupportedError

if TYPE_CHECKING:
    from archbench.architectures.layers.attention.multi_head import Attention, CrossAttention
    from archbench.architectures.layers.context import Context
    from archbench.architectures.layers.feedforward import DenseFeedForward
    from archbench.architectures.layers.moe.experts import Experts

ACTIVATIONS = ("relu", "relu_squared", "gelu", "gelu_tanh", "silu")
"""In the order in which the kernels number them."""


class _Attention(ctypes.Structure):
    """The structure of the same name in transformer.cpp."""

    _fields_ = (
        ("residual", ResidualSpec),
        ("q", LinearSpec),
        ("k", LinearSpec),
        ("v", LinearSpec),
        ("out", LinearSpec),
        ("q_norm", NormSpec),
        ("k_norm", NormSpec),
        ("by_head", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("rotated", ctypes.c_int64),
        ("interleaved", ctypes.c_int64),
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("room", ctypes.c_int64),
        ("scale", ctypes.c_double),
    )


class _Dense(ctypes.Structure):
    """The structure of the same name in transformer.cpp."""

    _fields_ = (
        ("residual", ResidualSpec),
        ("gate", LinearSpec),
        ("up", LinearSpec),
        ("down", LinearSpec),
        ("activation", ctypes.c_int64),
    )


class _Experts(ctypes.Structure):
    """The structure of the same name in moe.cpp."""

    _fields_ = (
        ("residual", ResidualSpec),
        ("router", LinearSpec),
        ("selection", ctypes.c_void_p),
        ("choices", ctypes.c_int64),
        ("sigmoid", ctypes.c_int64),
        ("renormalise", ctypes.c_int64),
        ("scaling", ctypes.c_double),
        ("gate", LinearSpec),
        ("up", LinearSpec),
        ("down", LinearSpec),
        ("shared_gate", LinearSpec),
        ("shared_up", LinearSpec),
        ("shared_down", LinearSpec),
        ("shared_share", LinearSpec),
        ("activation", ctypes.c_int64),
    )


class AttentionBranch:
    """Softmax attention of the new token to a cache and itself, or to a source."""

    def __init__(self, spec: DecodeSpec, fields: _Attention) -> None:
        self.spec, self.fields = spec, fields

    def __call__(self, read_BD: Tensor, stream_BD: Tensor, state: Any, context: Context) -> None:
        assert type(state) is ContiguousCache
        rows = read_BD.shape[0]

        def new_positions() -> Tensor:
            check_room(self.spec.capacity, int(context.positions_BT.max()) + 1)
            return context.positions_BT[:, 0].expand(rows).contiguous()

        positions_B = context.once("decode positions", new_positions)
        k_BGSE, v_BGSE = state.streams
        self.attend(read_BD, stream_BD, k_BGSE, v_BGSE, positions_B, None)

    def attend(
        self,
        read_BD: Tensor,
        stream_BD: Tensor,
        k_BGSE: Tensor,
        v_BGSE: Tensor,
        positions_B: Tensor,
        visible_BS: Tensor | None,
    ) -> None:
        """Attend from each row to the slots up to its position, without those where ``visible_BS`` is
        False."""
        keys, values = (k_BGSE, *k_BGSE.stride()[:3]), (v_BGSE, *v_BGSE.stride()[:3])
        slots = (positions_B, visible_BS, k_BGSE.shape[2])
        call("decode_attention", self.fields, read_BD, stream_BD, *slots, *keys, *values)


class SourceBranch(AttentionBranch):
    """Attention to keys and values of a source; the state is what ``CrossAttention.read`` gives."""

    def __call__(self, read_BD: Tensor, stream_BD: Tensor, state: Any, context: Context) -> None:
        k_BGSE, valid_BS = state["k"], state["valid"]
        rows, length = read_BD.shape[0], k_BGSE.shape[2]
        last_B = context.once("decode source", lambda: torch.full((rows,), length - 1))
        visible_BS = None
        if valid_BS is not None:
            visible_BS = context.once("decode visible", lambda: valid_BS.contiguous())
        self.attend(read_BD, stream_BD, k_BGSE, state["v"], last_B, visible_BS)


class FeedForwardBranch:
    """A dense feed-forward, or routed and shared experts."""

    def __init__(self, spec: DecodeSpec, kernel: str, fields: ctypes.Structure) -> None:
        self.spec, self.kernel, self.fields = spec, kernel, fields

    def __call__(self, read_BD: Tensor, stream_BD: Tensor, state: Any, context: Context) -> None:
        call(self.kernel, self.fields, read_BD, stream_BD)


@implements("decode attention")
def attention_branch(layer: Attention, spec: DecodeSpec, residual: ResidualSpec) -> AttentionBranch:
    """Return the branch of self-attention.

    Raises:
        UnsupportedError: the layer has another cache or mask than the kernel, or treats scores otherwise.
    """
    if layer.config.cache != "contiguous" or not layer.causal or layer.window is not None:
        raise UnsupportedError("what the cache keeps")
    fields = _attention_fields(layer, spec, residual, layer.k, layer.v)
    fields.k_norm = spec.norm(getattr(layer, "k_norm", None))
    rotary = layer.rotary
    if rotary is not None:
        if rotary.scaling.depends_on_length and spec.capacity > rotary.scaling.original_length:
            raise UnsupportedError("rotary frequencies that change with the length")
        length_11 = torch.tensor([[spec.capacity]])
        cos_SR, sin_SR = spec.once(
            rotary, lambda: rotary.tables(torch.arange(spec.capacity)[None], length_11)
        )
        fields.rotated, fields.interleaved = rotary.dim, rotary.interleaved
        fields.cos, fields.sin = map(spec.address, (cos_SR, sin_SR))
    if layer.own_bias is not None:
        fields.bias = spec.address(bias_by_distance(layer.own_bias, spec.capacity))
    elif layer.positional and spec.score_bias is not None:
        shared = spec.score_bias
        fields.bias = spec.address(spec.once("bias", lambda: bias_by_distance(shared, spec.capacity)))
    return AttentionBranch(spec, fields)


@implements("decode cross-attention")
def cross_attention_branch(layer: CrossAttention, spec: DecodeSpec, residual: ResidualSpec) -> SourceBranch:
    """Return the branch of attention to a source, which does not change the source.

    Raises:
        UnsupportedError: the kernel does not support the scores of the layer.
    """
    return SourceBranch(spec, _attention_fields(layer, spec, residual, None, None))


def _attention_fields(
    layer: Attention, spec: DecodeSpec, residual: ResidualSpec, k: nn.Linear | None, v: nn.Linear | None
) -> _Attention:
    c = layer.config
    scores_changed = c.softcap is not None or c.sinks or c.forget_gate or c.differential
    if c.kernel != "auto" or scores_changed or c.output_gate or c.value_residual:
        raise UnsupportedError("what is done to the scores, the values or the output")
    fields = _Attention(residual, *map(spec.linear, (layer.q, k, v, layer.out)))
    fields.q_norm, fields.by_head = spec.norm(getattr(layer, "q_norm", None)), c.qk_norm == "head"
    fields.heads, fields.kv_heads, fields.head_dim = layer.num_heads, layer.num_kv_heads, layer.head_dim
    fields.room, fields.scale = spec.capacity, layer.scale()
    return fields


@implements("decode dense")
def dense_branch(layer: DenseFeedForward, spec: DecodeSpec, residual: ResidualSpec) -> FeedForwardBranch:
    """Return the branch of a dense feed-forward.

    Raises:
        UnsupportedError: the kernel does not know its activation.
    """
    if layer.activation.name not in ACTIVATIONS:
        raise UnsupportedError("the activation of a feed-forward")
    linears = map(spec.linear, (layer.gate, layer.up, layer.down))
    fields = _Dense(residual, *linears, ACTIVATIONS.index(layer.activation.name))
    return FeedForwardBranch(spec, "decode_dense", fields)


@implements("decode experts")
def experts_branch(layer: Experts, spec: DecodeSpec, residual: ResidualSpec) -> FeedForwardBranch:
    """Return the branch of routed experts.

    Raises:
        UnsupportedError: the routing depends on other tokens, is observed, or leaves this process.
    """
    c, router, shared = layer.config, layer.router, layer.shared
    limited = c.choice == "expert" or c.capacity is not None or c.num_groups > 1
    if c.bias or layer.activation.name not in ACTIVATIONS:
        raise UnsupportedError("biases and activations of experts")
    if limited or c.dispatch != "auto" or layer.exchange is not None or layer.watcher is not None:
        raise UnsupportedError("the choice of experts")
    selection_X = None if c.bias_rate is None else router.selection_X
    stacks = (layer.gate_XFD, layer.up_XFD, layer.down_XDF)
    linears = (None,) * 3 if shared is None else (shared.gate, shared.up, shared.down)
    fields = _Experts(
        residual,
        spec.matrix(router.weight),
        spec.address(selection_X),
        c.experts_per_token,
        c.score == "sigmoid",
        c.renormalise,
        c.scaling,
        *(
            # Of the first expert; the matrices of all other experts follow it in memory.
            LinearSpec() if stack is None else LinearSpec(spec.address(stack), None, *stack.shape[1:])
            for stack in stacks
        ),
        *map(spec.linear, (*linears, layer.shared_gate)),
        ACTIVATIONS.index(layer.activation.name),
    )
    return FeedForwardBranch(spec, "decode_experts", fields)


def bias_by_distance(score_bias: nn.Module, capacity: int) -> Tensor:
    """Return the bias (H, capacity) of the scores of the last position's query; it depends on the distance
    only."""
    every_1S = torch.arange(capacity)[None]
    bias_1HTS = score_bias(every_1S[:, -1:], every_1S)
    return bias_1HTS[0, :, 0].float().contiguous()
