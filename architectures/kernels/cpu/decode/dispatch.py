"""Choose how the blocks of a model decode: by PyTorch, or one token at a time by the C++ kernels.

This module is the only door to the decode kernels. Which layers they support is decided here, by the type of
the layer, once for each decoding state. The kernels decode one token of each of a few sequences, in float32
on a CPU; everything else is left to PyTorch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from architectures.backbone import DecodingState
from architectures.kernels.cpu import build
from architectures.kernels.cpu.decode.layer_spec import (
    ROWS,
    Branch,
    DecodeSpec,
    ResidualSpec,
    Step,
    UnsupportedError,
)
from architectures.kernels.cpu.decode.moe import experts_branch
from architectures.kernels.cpu.decode.ssm import mamba2_branch, mamba_branch
from architectures.kernels.cpu.decode.transformer import (
    attention_branch,
    cross_attention_branch,
    dense_branch,
)
from architectures.layers.attention.multi_head import Attention, CrossAttention
from architectures.layers.block import Block, Residual
from architectures.layers.context import Context
from architectures.layers.cross_attention_block import CrossAttentionBlock
from architectures.layers.feedforward import DenseFeedForward
from architectures.layers.moe.experts import Experts
from architectures.mixers.mamba import SelectiveSSM
from architectures.mixers.mamba2 import SSD


@dataclass(kw_only=True)
class CompiledDecodingState(DecodingState):
    """A decoding state that keeps the steps compiled for it."""

    steps: list[Step | None]
    """The step of each block by the C++ kernels; None where a block has none."""


@functools.singledispatch
def decode_branch(layer: nn.Module, spec: DecodeSpec, residual: ResidualSpec) -> Branch:
    """Return the residual branch of a layer for one token of each row, chosen by the type of the layer.

    Raises:
        UnsupportedError: there is no kernel for such a layer, or not with its settings.
    """
    raise UnsupportedError(type(layer).__name__)


decode_branch.register(Attention, attention_branch)
decode_branch.register(CrossAttention, cross_attention_branch)
decode_branch.register(DenseFeedForward, dense_branch)
decode_branch.register(Experts, experts_branch)
decode_branch.register(SelectiveSSM, mamba_branch)
decode_branch.register(SSD, mamba2_branch)


@functools.singledispatch
def decode_step(block: Block, spec: DecodeSpec) -> Step:
    """Return the step of a block for one token of each row, in evaluation.

    Raises:
        UnsupportedError: a layer of the block has no kernel.
    """
    norm = block.mixer_residual.before
    branches = [decode_branch(block.mixer, spec, residual_spec(spec, block.mixer_residual, norm))]
    if block.feedforward is not None and block.feedforward_residual is not None:
        norm = norm if block.shared_norm else block.feedforward_residual.before
        residual = residual_spec(spec, block.feedforward_residual, norm)
        branches.append(decode_branch(block.feedforward, spec, residual))

    def step(x_B1D: Tensor, state: Any, context: Context) -> Tensor:
        read_BD = x_B1D[:, 0].contiguous()
        stream_BD = read_BD.clone()
        for branch in branches:
            branch(read_BD if block.parallel else stream_BD, stream_BD, state, context)
        return stream_BD[:, None]

    return step


@decode_step.register
def _(block: CrossAttentionBlock, spec: DecodeSpec) -> Step:
    layers = (
        (block.mixer, block.mixer_residual),
        (block.cross, block.cross_residual),
        (block.feedforward, block.feedforward_residual),
    )
    mixer, cross, feedforward = (
        decode_branch(layer, spec, residual_spec(spec, residual, residual.before))
        for layer, residual in layers
    )

    def step(x_B1D: Tensor, state: dict[str, Any], context: Context) -> Tensor:
        stream_BD = x_B1D[:, 0].clone(memory_format=torch.contiguous_format)
        mixer(stream_BD, stream_BD, state["self"], context)
        cross(stream_BD, stream_BD, state["source"], context)
        feedforward(stream_BD, stream_BD, None, context)
        return stream_BD[:, None]

    return step


def residual_spec(spec: DecodeSpec, residual: Residual, norm: nn.Module | None) -> ResidualSpec:
    """Return the specification of a residual branch that applies ``norm`` to its input."""
    return ResidualSpec(spec.norm(norm), spec.norm(residual.after), residual.placement == "post")


def compile_decode_steps(
    blocks: Sequence[Block], capacity: int, score_bias: nn.Module | None = None
) -> list[Step | None]:
    """Return the C++ step of each block, None where it has none, for up to ``capacity`` tokens."""
    spec = DecodeSpec(capacity, score_bias)
    return [_compile_decode_step(block, spec) for block in blocks]


def _compile_decode_step(block: Block, spec: DecodeSpec) -> Step | None:
    if block.canons:
        return None
    try:
        step = decode_step(block, spec)
    except UnsupportedError:
        return None
    return None if build.problem() else step


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
