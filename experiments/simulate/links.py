"""Seconds that a step takes to compute and to exchange, from what a GPU and its links can do at best.

The rule of NCCL's tests (nccl-tests, doc/PERFORMANCE.md): of a tensor of S bytes, n processes send and
receive S (n - 1)/n each in an all-gather, a reduce-scatter or an all-to-all, and twice that in an all-reduce.
Latency and the overlap of communication with computation are ignored: both times are lower bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from experiments.config.schema import DeviceConfig
from experiments.simulate.traffic import Exchange

GPUS_PER_NODE = 8
"""GPUs of a node where ``parallel.gpus_per_node`` does not say."""
PASSES = {"all-reduce": 2.0}
"""Passes of each byte, by type of collective; one for all other types."""


@dataclass(frozen=True, kw_only=True)
class Links:
    """The links of a GPU, in bytes per second in each direction."""

    node: float
    """To other GPUs of its node."""
    network: float
    """Of its network adapter, to other nodes."""
    gpus_per_node: int

    @classmethod
    def of(cls, device: DeviceConfig, gpus_per_node: int | None) -> Links | None:
        """Return the links of a device; None where they are not stated."""
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
