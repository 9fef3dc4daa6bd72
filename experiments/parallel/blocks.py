"""Blocks that are computed again in the backward pass instead of being remembered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from architectures.layers.block import Block
from architectures.layers.context import Context


def recompute(block: Block) -> None:
    """Keeps only the input of a block for the backward pass (Chen et al. 2016, arXiv 1604.06174)."""
    inner = block.forward

    def forward(x_BTD: Tensor, context: Context, *more: Any) -> Any:
        def run(x_BTD: Tensor, *more: Any) -> Any:
            # A copy, so that the second time finds what the first found, and nothing made since.
            return inner(x_BTD, replace(context, _made=dict(context._made)), *more)

        return checkpoint(run, x_BTD, *more, use_reentrant=False)

    block.forward = forward  # type: ignore[method-assign]
