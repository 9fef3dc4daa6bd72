"""Decoding steps of blocks: by kernels where there are any, else by ``Block.step``.

Shapes: B batch, T new tokens, D d_model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archbench.architectures.decoding_state import DecodingState
from archbench.architectures.fast_paths import find_kernel
from archbench.architectures.layers.block import Block, Step
from archbench.architectures.layers.context import Context

ROWS = 16
"""With more sequences than this the matrix products of PyTorch are faster."""


@dataclass(kw_only=True)
class CompiledDecodingState(DecodingState):
    """A decoding state that keeps the steps compiled for it."""

    steps: list[Step | None]
    """The step of each block by kernels; None where a block has none."""


def compile_decode_steps(
    blocks: Sequence[Block], capacity: int, score_bias: nn.Module | None = None
) -> list[Step | None]:
    """Return the step of each block by kernels, None where it has none, for up to ``capacity`` tokens."""
    decode_steps = find_kernel("decode steps")
    if decode_steps is None:
        return [None] * len(blocks)
    steps: list[Step | None] = decode_steps(blocks, capacity, score_bias)
    return steps


def select_decode_steps(
    blocks: Sequence[Block], state: DecodingState, x_BTD: Tensor, context: Context
) -> list[Step]:
    """Return the step function of each block from ``state``, for this piece of input."""
    by_torch: list[Step] = [block.step for block in blocks]
    if not isinstance(state, CompiledDecodingState):
        return by_torch
    batch, length, _ = x_BTD.shape
    unmasked = context.valid_BT is None and context.reach_BT is None
    if length > 1 or batch > ROWS or not unmasked or x_BTD.dtype != torch.float32:
        return by_torch
    if torch.is_autocast_enabled(x_BTD.device.type):
        return by_torch
    return [compiled or torch_step for compiled, torch_step in zip(state.steps, by_torch, strict=True)]


def decoding_path(blocks: Sequence[Block], score_bias: nn.Module | None = None) -> str:
    """Return the kernels that decode one token, for the record of a run: ``cpp``, ``torch`` or a mixture."""
    steps = compile_decode_steps(blocks, 1, score_bias)
    count = sum(step is not None for step in steps)
    if 0 < count < len(steps):
        return f"cpp in {count} of {len(steps)} blocks"
    return "cpp" if count else "torch"
