"""Attention and dense feed-forwards for one new token of each sequence, by the C++ kernels.

Shapes: B batch, D d_model, H query heads, R rotated dimensions, S slots.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor, nn

from architectures.kernels.cpu.decode.layer_spec import Description, Linear, Norm, Residual, call
from architectures.layers.attention.kv_cache import ContiguousCache, check_room
from architectures.layers.context import Context
from architectures.layers.positions import Rotary

ACTIVATIONS = ("relu", "relu_squared", "gelu", "gelu_tanh", "silu")
"""In the order in which the kernels number them."""


class _Attention(ctypes.Structure):
    """As in transformer.cpp."""

    _fields_ = (
        ("residual", Residual),
        ("q", Linear),
        ("k", Linear),
        ("v", Linear),
        ("out", Linear),
        ("q_norm", Norm),
        ("k_norm", Norm),
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
    """As in transformer.cpp."""

    _fields_ = (
        ("residual", Residual),
        ("gate", Linear),
        ("up", Linear),
        ("down", Linear),
        ("activation", ctypes.c_int64),
    )


class AttentionBranch:
    """Softmax attention of the new token to a cache and itself, or to a source."""

    def __init__(
        self,
        about: Description,
        residual: Residual,
        *,
        q: nn.Linear,
        k: nn.Linear | None,
        v: nn.Linear | None,
        out: nn.Linear,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        q_norm: nn.Module | None = None,
        k_norm: nn.Module | None = None,
        norm_by_head: bool = False,
        rotary: Rotary | None = None,
        biased: bool = False,
    ) -> None:
        """Without ``k`` and ``v`` nothing is added to what is read; ``biased`` takes the score bias."""
        self.about = about
        fields = self.fields = _Attention(residual, *map(about.linear, (q, k, v, out)))
        fields.q_norm, fields.k_norm, fields.by_head = about.norm(q_norm), about.norm(k_norm), norm_by_head
        fields.heads, fields.kv_heads, fields.head_dim = heads, kv_heads, head_dim
        fields.room, fields.scale = about.room, scale
        if rotary is not None:
            cos_SR, sin_SR = about.once(rotary, lambda: rotary.tables(torch.arange(about.room)[None]))
            fields.rotated, fields.interleaved = rotary.dim, rotary.interleaved
            fields.cos, fields.sin = map(about.address, (cos_SR, sin_SR))
        if biased and about.score_bias is not None:
            fields.bias = about.address(about.once("bias", lambda: bias_by_distance(about)))

    def __call__(self, read_BD: Tensor, stream_BD: Tensor, state: Any, context: Context) -> None:
        assert type(state) is ContiguousCache
        rows = read_BD.shape[0]

        def new_positions() -> Tensor:
            check_room(self.about.room, int(context.positions_BT.max()) + 1)
            return context.positions_BT[:, 0].expand(rows).contiguous()

        positions_B = context.once("native positions", new_positions)
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
        """Each row sees the slots up to its position, but not those where ``visible_BS`` is False."""
        slots = k_BGSE.shape[2]
        keys, values = (part for x in (k_BGSE, v_BGSE) for part in ((x, *x.stride()[:3]),))
        call(
            "decode_attention",
            self.fields,
            read_BD,
            stream_BD,
            positions_B,
            visible_BS,
            slots,
            *keys,
            *values,
        )


class SourceBranch(AttentionBranch):
    """Attention to keys and values of a source; the state is what ``CrossAttention.read`` gives."""

    def __call__(self, read_BD: Tensor, stream_BD: Tensor, state: Any, context: Context) -> None:
        k_BGSE, valid_BS = state["k"], state["valid"]
        rows, length = read_BD.shape[0], k_BGSE.shape[2]
        last_B = context.once("native source", lambda: torch.full((rows,), length - 1))
        visible_BS = None
        if valid_BS is not None:
            visible_BS = context.once("native visible", lambda: valid_BS.contiguous())
        self.attend(read_BD, stream_BD, k_BGSE, state["v"], last_B, visible_BS)


class DenseBranch:
    """A dense feed-forward."""

    def __init__(
        self,
        about: Description,
        residual: Residual,
        *,
        gate: nn.Linear | None,
        up: nn.Linear,
        down: nn.Linear,
        activation: str,
    ) -> None:
        self.about = about
        self.fields = _Dense(residual, *map(about.linear, (gate, up, down)), ACTIVATIONS.index(activation))

    def __call__(self, read_BD: Tensor, stream_BD: Tensor, state: Any, context: Context) -> None:
        call("decode_dense", self.fields, read_BD, stream_BD)


def bias_by_distance(about: Description) -> Tensor:
    """The bias (H, room) of the scores of the last position's query; it depends on the distance alone."""
    assert about.score_bias is not None
    every_1S = torch.arange(about.room)[None]
    bias_1HTS = about.score_bias(every_1S[:, -1:], every_1S)
    return bias_1HTS[0, :, 0].float().contiguous()
