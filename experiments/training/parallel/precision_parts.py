"""The parameters that mixed precision may round, and those that it may not."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from architectures.layers.moe.experts import MATRICES, Experts
from architectures.layers.moe.router import Router


def wide_parameters(model: nn.Module, blocks: Iterable[nn.Module]) -> list[str]:
    """Return the names of the parameters of blocks that are needed in float32.

    These are all but the weights of linear layers and of experts, which are only used in matrix products.
    Those of routers are also needed in float32.
    """
    rounded: set[int] = set()
    for block in blocks:
        for part in block.modules():
            if isinstance(part, nn.Linear) and not isinstance(part, Router):
                rounded.add(id(part.weight))
            elif isinstance(part, Experts):
                rounded |= {id(getattr(part, name)) for name in MATRICES}
    within = {id(parameter) for block in blocks for parameter in block.parameters()}
    return [name for name, p in model.named_parameters() if id(p) in within - rounded]
