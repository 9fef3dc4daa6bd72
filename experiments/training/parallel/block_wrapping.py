"""Blocks that are compiled, computed again in the backward pass, or rounded by mixed precision."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from archbench.architectures.layers.block import Block
from archbench.architectures.layers.context import Context
from archbench.experiments.runtime.errors import ConfigError


def recompute(block: Block) -> None:
    """Keeps only the input of a block for the backward pass (Chen et al. 2016, arXiv 1604.06174)."""
    inner = block.forward

    def forward(x_BTD: Tensor, context: Context, *more: Any) -> Any:
        carried, mirrored = dict(context.carried), dict(context.carried_mirrored)

        def run(x_BTD: Tensor, *more: Any) -> Any:
            # Copies, so that the recomputation sees the same context as the first pass.
            seen = replace(
                context, _made=dict(context._made), carried=dict(carried), carried_mirrored=dict(mirrored)
            )
            output = inner(x_BTD, seen, *more)
            # Later blocks read the values of the first pass.
            context.carried = {**seen.carried, **context.carried}
            context.carried_mirrored = {**seen.carried_mirrored, **context.carried_mirrored}
            return output

        return checkpoint(run, x_BTD, *more, use_reentrant=False)

    block.forward = forward  # type: ignore[method-assign]


def compile_block(block: Block) -> None:
    """Compiles the forward pass of a block, and with it the backward pass, for training.

    Without gradients it runs as it is: evaluations have other shapes, each of which would be compiled.
    """
    plain, compiled = block.forward, torch.compile(block.forward)

    def forward(*given: Any) -> Any:
        return compiled(*given) if torch.is_grad_enabled() else plain(*given)

    block.forward = forward  # type: ignore[method-assign, assignment]


def check_compiler(device: torch.device) -> None:
    """Raises ConfigError where ``torch.compile`` finds no compiler for a device."""
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        missing = None if has_triton() else "Triton for this GPU is not installed (pip install triton)"
    else:
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch._inductor.exc import InvalidCxxCompiler

        try:
            get_cpp_compiler()
            missing = None
        except InvalidCxxCompiler:
            missing = "there is no C++ compiler (install g++, or name one in CXX)"
    if missing:
        raise ConfigError(f"trainer.compile=blocks: {missing}; or leave trainer.compile=none")


def compile_seconds() -> float:
    """Seconds that ``torch.compile`` has used so far in this process."""
    compiler = sys.modules.get("torch._dynamo.utils")  # importing it needs a second
    return 0.0 if compiler is None else compiler.calculate_time_spent().get("total_wall_time", 0.0)


def wide_parameters(model: nn.Module, blocks: Iterable[nn.Module]) -> list[str]:
    """Return the names of the parameters of blocks that are needed in float32.

    These are all but those that are only used in matrix products: the weights of linear layers, or what a
    module lists in ``low_precision_parameters``.
    """
    rounded: set[int] = set()
    for block in blocks:
        for part in block.modules():
            default = ("weight",) if isinstance(part, nn.Linear) else ()
            names: tuple[str, ...] = getattr(part, "low_precision_parameters", default)
            rounded |= {id(getattr(part, name)) for name in names}
    within = {id(parameter) for block in blocks for parameter in block.parameters()}
    return [name for name, p in model.named_parameters() if id(p) in within - rounded]
