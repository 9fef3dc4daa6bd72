"""The block of a decoder that also attends to a source.

Shapes: B batch, T target length, S source length, D d_model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from archbench.architectures.layers.attention.multi_head import CrossAttention
from archbench.architectures.layers.block import (
    Auxiliary,
    Block,
    BlockConfig,
    BranchMaker,
    FeedForward,
    Mixer,
    Residual,
    Step,
)
from archbench.architectures.layers.canon import filtered
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.normalization import MakeNorm


class CrossAttentionBlock(Block):
    """A block with cross-attention between mixer and feed-forward."""

    cross: CrossAttention
    cross_residual: Residual
    feedforward: FeedForward
    feedforward_residual: Residual

    def __init__(
        self,
        mixer: Mixer,
        cross: CrossAttention,
        feedforward: FeedForward,
        make_norm: MakeNorm,
        config: BlockConfig,
        *,
        skip: float = 0.0,
        first: bool = False,
    ) -> None:
        super().__init__(mixer, feedforward, make_norm, config, skip=skip, first=first, cross=cross)

    def forward(  # type: ignore[override]
        self, x_BTD: Tensor, context: Context, source_BSD: Tensor, source_valid_BS: Tensor | None
    ) -> tuple[Tensor, Auxiliary]:
        """Return the output of the block for full targets, and its auxiliary losses."""
        source = self.cross.read(source_BSD, source_valid_BS)
        input_BTD = self.mixer_residual.pre(x_BTD, low_precision=True)
        mixed_BTD = self.mixer(filtered(self, "A", input_BTD, context), context)
        return self._after(x_BTD, mixed_BTD, source, context)

    def step(self, x_BTD: Tensor, state: dict[str, Any], context: Context) -> Tensor:
        mixer_state, context = self.opened(state["self"], context)
        input_BTD = self.mixer_residual.pre(x_BTD, low_precision=True)
        mixed_BTD = self.mixer.step(filtered(self, "A", input_BTD, context), mixer_state, context)
        return self._after(x_BTD, mixed_BTD, state["source"], context)[0]

    def decode_step(self, maker: BranchMaker) -> Step:
        mixer, cross, feedforward = (
            maker.branch(layer, residual, residual.before)
            for layer, residual in (
                (self.mixer, self.mixer_residual),
                (self.cross, self.cross_residual),
                (self.feedforward, self.feedforward_residual),
            )
        )

        def step(x_B1D: Tensor, state: dict[str, Any], context: Context) -> Tensor:
            stream_BD = x_B1D[:, 0].clone(memory_format=torch.contiguous_format)
            mixer(stream_BD, stream_BD, state["self"], context)
            cross(stream_BD, stream_BD, state["source"], context)
            feedforward(stream_BD, stream_BD, None, context)
            return stream_BD[:, None]

        return step

    def _after(
        self, x_BTD: Tensor, mixed_BTD: Tensor, source: dict[str, Any], context: Context
    ) -> tuple[Tensor, Auxiliary]:
        x_BTD = self.mixer_residual.add(x_BTD, mixed_BTD)
        input_BTD = self.cross_residual.pre(x_BTD, low_precision=True)
        x_BTD = self.cross_residual.add(x_BTD, self.cross.cross(input_BTD, source))
        input_BTD = self.feedforward_residual.pre(x_BTD, low_precision=True)
        z_BTD, auxiliary = self.feedforward(filtered(self, "C", input_BTD, context), context)
        return self.feedforward_residual.add(x_BTD, z_BTD), auxiliary
