"""A record of what routers decide, kept while somebody asks for it.

Shapes: B batch, T length, X experts, K choices of a token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from architectures.layers.experts import Experts
from architectures.layers.router import Routing


@dataclass(frozen=True, kw_only=True)
class RoutingRecord:
    """The decisions of one layer in one forward pass, without their graph."""

    num_experts: int
    expert_BTK: Tensor
    """The experts of each token, the best first."""
    gate_BTK: Tensor
    taken_BTK: Tensor
    """False at padding, and where an expert was full or did not choose the token."""
    valid_BT: Tensor
    """False at padding."""
    entropy_BT: Tensor
    """Of the router's scores, normalised, in nats: 0 is certain, log X undecided."""
    dropping: bool
    """Whether experts can be full."""

    @property
    def load_X(self) -> Tensor:
        """The share of each expert among all visits."""
        counts_X = torch.bincount(self.expert_BTK[self.taken_BTK], minlength=self.num_experts)
        return counts_X / counts_X.sum()

    @property
    def load_entropy(self) -> float:
        """Entropy of the load in nats; log X where it is even."""
        return float(torch.special.entr(self.load_X).sum())

    @property
    def max_load(self) -> float:
        """Load of the fullest expert over an even share; 1 where the load is even."""
        return float(self.load_X.max() * self.num_experts)

    @property
    def router_entropy(self) -> float:
        """Mean of ``entropy_BT`` over the tokens."""
        return float(self.entropy_BT[self.valid_BT].mean())

    @property
    def dropped_share(self) -> float:
        """Visits that came to nothing because an expert was full, as a share of all that were asked for."""
        if not self.dropping:
            return 0.0
        asked = self.valid_BT[..., None].expand_as(self.taken_BTK)
        return float(1 - self.taken_BTK.sum() / asked.sum())


@contextmanager
def record_routing(model: nn.Module) -> Iterator[dict[str, list[RoutingRecord]]]:
    """Within it, every forward pass and step of the model adds a record for each layer of experts.

    Yields the records by the name of the layer, such as ``blocks.1.feedforward``, one for each pass.
    """
    layers = {name: part for name, part in model.named_modules() if isinstance(part, Experts)}
    records: dict[str, list[RoutingRecord]] = {name: [] for name in layers}

    def watch(layer: Experts, own: list[RoutingRecord]) -> None:
        def add(routing: Routing, valid_BT: Tensor | None) -> None:
            own.append(_record(layer, routing, valid_BT))

        layer.watcher = add

    for name, layer in layers.items():
        watch(layer, records[name])
    try:
        yield records
    finally:
        for layer in layers.values():
            layer.watcher = None


@torch.no_grad()
def _record(layer: Experts, routing: Routing, valid_BT: Tensor | None) -> RoutingRecord:
    score_BTX = routing.score_BTX / routing.score_BTX.sum(-1, keepdim=True)
    if valid_BT is None:
        valid_BT = torch.ones_like(score_BTX[..., 0], dtype=torch.bool)
    taken_BTK = valid_BT[..., None].expand_as(routing.expert_BTK)
    return RoutingRecord(
        num_experts=layer.config.num_experts,
        expert_BTK=routing.expert_BTK,
        gate_BTK=routing.gate_BTK.detach(),
        taken_BTK=taken_BTK if routing.kept_BTK is None else taken_BTK & routing.kept_BTK,
        valid_BT=valid_BT,
        entropy_BT=torch.special.entr(score_BTX).sum(-1),
        dropping=routing.kept_BTK is not None and layer.config.choice == "token",
    )
