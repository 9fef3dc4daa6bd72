"""Bytes that a process exchanges with other processes, counted by collective."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed._tools.fake_collectives import CollectiveOp
from torch.utils._python_dispatch import TorchDispatchMode

NAMESPACES = ("c10d", "_c10d_functional")
COLLECTIVES = {
    "all-gather": ("allgather", "all_gather"),
    "reduce-scatter": ("reduce_scatter",),
    "all-reduce": ("allreduce", "all_reduce"),
    "all-to-all": ("alltoall", "all_to_all"),
    "broadcast": ("broadcast",),
}
"""Kinds of collectives, and parts of the names of their operators."""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A type of collective, and the processes that take part in it."""

    kind: str
    """A key of ``COLLECTIVES``."""
    ranks: tuple[int, ...]


class Traffic(TorchDispatchMode):
    """Counts the bytes of every collective that is called within it.

    The count is the larger of input and output on one process: the gathered tensor of an
    all-gather, the full tensor of a reduce-scatter, the tensor of an all-reduce.
    """

    def __init__(self) -> None:
        super().__init__()
        self.exchanged: Counter[Exchange] = Counter()
        """Bytes by collective and processes."""

    @property
    def bytes(self) -> Counter[str]:
        """Bytes by collective."""
        return by_collective(self.exchanged)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace in NAMESPACES and (collective := _kind(str(func))) is not None:
            num_in = sum(tensor.nbytes for tensor in _tensors(args[:1]))
            num_other = sum(tensor.nbytes for tensor in _tensors(args[1:2]))
            num_out = sum(tensor.nbytes for tensor in _tensors([result]))
            group = CollectiveOp.get_process_group(func, args)
            ranks = tuple(dist.get_process_group_ranks(group))
            self.exchanged[Exchange(kind=collective, ranks=ranks)] += max(num_in, num_other, num_out)
        return result


def by_collective(exchanged: Mapping[Exchange, int]) -> Counter[str]:
    """Return the bytes of each type of collective, summed over process groups."""
    totals: Counter[str] = Counter()
    for exchange, size in exchanged.items():
        totals[exchange.kind] += size
    return totals


def _kind(name: str) -> str | None:
    """Return the type of collective of an operator; None without communication, such as a wait."""
    return next((kind for kind, parts in COLLECTIVES.items() if any(part in name for part in parts)), None)


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """Return the tensors of nested lists; in-place operators return theirs with a handle, counted once."""
    by_id: dict[int, Tensor] = {}
    pending = list(values)
    while pending:
        value = pending.pop()
        if isinstance(value, Tensor):
            by_id[id(value)] = value
        elif isinstance(value, list | tuple):
            pending += value
    return list(by_id.values())
