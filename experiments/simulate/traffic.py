"""Bytes that a process exchanges with other processes, by collective, and the time that its links need.

The times follow the rule of NCCL's tests (nccl-tests, doc/PERFORMANCE.md): of a tensor of S bytes, n
processes send and receive S (n - 1)/n each in an all-gather, a reduce-scatter or an all-to-all, and twice
that in an all-reduce. Latency and the overlap of communication with computation are ignored: times are lower
bounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed._tools.fake_collectives import CollectiveOp
from torch.utils._python_dispatch import TorchDispatchMode

from archbench.experiments.config.schema import DeviceConfig

NAMESPACES = ("c10d", "_c10d_functional")
COLLECTIVES = {
    "all-gather": ("allgather", "all_gather"),
    "reduce-scatter": ("reduce_scatter",),
    "all-reduce": ("allreduce", "all_reduce"),
    "all-to-all": ("alltoall", "all_to_all"),
    "broadcast": ("broadcast",),
}
"""Types of collectives, and parts of the names of their operators."""
PASSES = {"all-reduce": 2.0}
"""Passes of each byte, by type of collective; one for all other types."""
GPUS_PER_NODE = 8
"""GPUs of a node if ``parallel.gpus_per_node`` is null."""


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
        """Return the bytes by collective."""
        return by_collective(self.exchanged)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace not in NAMESPACES:
            return result
        matches = (kind for kind, parts in COLLECTIVES.items() if any(part in str(func) for part in parts))
        if (kind := next(matches, None)) is not None:  # None without communication, such as a wait
            num_in = sum(tensor.nbytes for tensor in _tensors(args[:1]))
            num_other = sum(tensor.nbytes for tensor in _tensors(args[1:2]))
            num_out = sum(tensor.nbytes for tensor in _tensors([result]))
            group = CollectiveOp.get_process_group(func, args)
            ranks = tuple(dist.get_process_group_ranks(group))
            self.exchanged[Exchange(kind=kind, ranks=ranks)] += max(num_in, num_other, num_out)
        return result


def by_collective(exchanged: Mapping[Exchange, int]) -> Counter[str]:
    """Return the bytes of each type of collective, summed over process groups."""
    totals: Counter[str] = Counter()
    for exchange, size in exchanged.items():
        totals[exchange.kind] += size
    return totals


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


@dataclass(frozen=True, kw_only=True)
class Links:
    """Bandwidths of the links of a GPU, in bytes per second in each direction."""

    node: float
    """Bandwidth to other GPUs of its node."""
    network: float
    """Bandwidth of its network adapter, to other nodes."""
    gpus_per_node: int

    @classmethod
    def of(cls, device: DeviceConfig, gpus_per_node: int | None) -> Links | None:
        """Return the links of a device; None if their bandwidths are unknown."""
        if device.node_bandwidth is None or device.network_bandwidth is None:
            return None
        return cls(
            node=device.node_bandwidth,
            network=device.network_bandwidth,
            gpus_per_node=gpus_per_node or GPUS_PER_NODE,
        )

    def bandwidth(self, ranks: tuple[int, ...]) -> float:
        """Return the bytes per second at which processes exchange, with neighbouring ranks on a node.

        Across nodes, a byte crosses the network once for all processes of a node, which
        send through their adapters in parallel.
        """
        nodes = {rank // self.gpus_per_node for rank in ranks}
        if len(nodes) == 1:
            return self.node
        on_node = sum(rank // self.gpus_per_node == ranks[0] // self.gpus_per_node for rank in ranks)
        return min(self.node, on_node * self.network)

    def seconds(self, exchanged: Mapping[Exchange, int]) -> float:
        """Return the seconds that exchanges take one after the other."""
        return sum(
            PASSES.get(exchange.kind, 1.0)
            * size
            * (1 - 1 / len(exchange.ranks))
            / self.bandwidth(exchange.ranks)
            for exchange, size in exchanged.items()
        )
