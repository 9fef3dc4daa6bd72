"""How the blocks of a model take one more piece: by PyTorch, or one token at a time by the C++ kernels.

Which blocks can do the latter is decided once, when a decoding state is made. It is done for one token of
each of a few sequences, in float32 on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from architectures.backbone import DecodingState
from architectures.kernels.cpu import build as native
from architectures.kernels.cpu.decode.layer_spec import ROWS, Description, Step, UnableError
from architectures.layers.block import Block
from architectures.layers.context import Context


def native_steps(
    blocks: Sequence[Block], room: int, score_bias: nn.Module | None = None
) -> list[Step | None]:
    """The step of each block by the C++ kernels, None where it has none; for ``room`` tokens at most."""
    about = Description(room, score_bias)
    return [_native_step(block, about) for block in blocks]


def _native_step(block: Block, about: Description) -> Step | None:
    try:
        step = block.native_step(about)
    except UnableError:
        return None
    return None if native.problem() else step


def steps(blocks: Sequence[Block], state: DecodingState, x_BTD: Tensor, context: Context) -> list[Step]:
    """What takes each block on from ``state``."""
    batch, length, _ = x_BTD.shape
    unmasked = context.valid_BT is None and context.reach_BT is None and context.slot is None
    plain = unmasked and x_BTD.dtype == torch.float32
    portable: list[Step] = [block.step for block in blocks]
    if length > 1 or batch > ROWS or not plain or torch.is_autocast_enabled(x_BTD.device.type):
        return portable
    return [own or other for own, other in zip(state.native or portable, portable, strict=True)]


def decoding_path(found: list[Step | None]) -> str:
    """How a token is decoded, in words, for the record of a run."""
    count = sum(step is not None for step in found)
    if 0 < count < len(found):
        return f"native in {count} of {len(found)} blocks"
    return "native" if count else "portable"
