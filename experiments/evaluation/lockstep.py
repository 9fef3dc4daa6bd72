"""Forward passes that need all processes, each with different examples.

Where the weights of a model are divided among processes, a forward pass gathers them block by block, so that
all processes must run it together. Processes may have different counts of batches, or of passes for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


@contextmanager
def in_step(model: nn.Module) -> Iterator[None]:
    """Allow processes to run the model with different frequency in the block.

    Before each pass, processes exchange which of them run one. A process that has left the block repeats its
    last pass, which the other processes need, until none makes one.

    All processes must enter it, run the model at least once, and only by calling it.
    """
    last_call: list[tuple[Any, Any]] = []

    def announce(module: nn.Module, args: Any, kwargs: Any) -> None:
        last_call[:] = [(args, kwargs)]
        _any_works(True)

    # Before the hooks that gather weights, so that all processes do both in the same order.
    hook = model.register_forward_pre_hook(announce, prepend=True, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()
    while _any_works(False):
        args, kwargs = last_call[0]
        model(*args, **kwargs)


def _any_works(local: bool) -> bool:
    """Return True if any process is about to run the model. All processes must call it."""
    flag = torch.tensor(int(local))
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)
