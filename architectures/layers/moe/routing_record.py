"""A record of the decisions of routers, while it is requested.

Shapes: B batch, T length, X experts, K choices of a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from archbench.architectures.layers.moe.experts import Experts
from archbench.architectures.layers.moe.router import Routing


@dataclass(frozen=True, kw_only=True)
class RoutingRecord:
    """The decisions of one layer in one or more forward passes, without their graph."""

    num_experts: int
    expert_BTK: Tensor
    """The experts of each token, the best first."""
    gate_BTK: Tensor
    chosen_BTK: Tensor
    """False at padding, and where the experts choose and do not choose the token."""
    taken_BTK: Tensor
    """False at padding, and where an expert was full or did not choose the token."""
    valid_BT: Tensor
    """False at padding."""
    logits_BTX: Tensor
    """Of the router; at least float32."""
    entropy_BT: Tensor
    """Of the router's scores, normalised, in nats: 0 is certain, log X undecided."""
    dropping: bool
    """True where experts have a limited capacity."""
    taken_in_training_BTK: Tensor
    """``taken_BTK`` as in training, where ``capacity_factor`` also limits the experts."""

    @classmethod
    def joined(cls, parts: Sequence[RoutingRecord]) -> RoutingRecord:
        """Return the record of multiple batches of equal length as one."""
        names = [f.name for f in fields(cls) if isinstance(getattr(parts[0], f.name), Tensor)]
        joined: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
        return replace(parts[0], **joined)

    @property
    def load_X(self) -> Tensor:
        """Return the fraction of visits that each expert has."""
        counts_X = torch.bincount(self.expert_BTK[self.taken_BTK], minlength=self.num_experts)
        return counts_X / counts_X.sum()

    @property
    def load_entropy(self) -> float:
        """Entropy of the load in nats; log X where it is even."""
        return float(torch.special.entr(self.load_X).sum())

    @property
    def max_load(self) -> float:
        """Load of the fullest expert over an even load; 1 where the load is even."""
        return float(self.load_X.max() * self.num_experts)

    @property
    def max_violation(self) -> float:
        """Return the excess of the fullest expert over an even load, relative to it (arXiv 2408.15664)."""
        return self.max_load - 1

    @property
    def mean_violation(self) -> float:
        """Return the mean distance of the experts from an even load, relative to it."""
        return float((self.load_X * self.num_experts - 1).abs().mean())

    @property
    def gate_mean(self) -> float:
        """Mean gate of the tokens that experts processed."""
        return float(self.gate_BTK[self.taken_BTK].mean())

    @property
    def logit_norm(self) -> float:
        """Mean over the tokens of the Euclidean norm of the router's logits."""
        return float(self.logits_BTX[self.valid_BT].norm(dim=-1).mean())

    @property
    def router_entropy(self) -> float:
        """Mean of ``entropy_BT`` over the tokens."""
        return float(self.entropy_BT[self.valid_BT].mean())

    @property
    def dropped_share(self) -> float:
        """Return the fraction of visits that were dropped because an expert was full."""
        return self._dropped(self.taken_BTK)

    @property
    def dropped_in_training(self) -> float:
        """Return the fraction of visits that would be dropped under the capacity of training."""
        return self._dropped(self.taken_in_training_BTK)

    def _dropped(self, taken_BTK: Tensor) -> float:
        if not self.dropping:
            return 0.0
        requested = self.valid_BT[..., None].expand_as(taken_BTK)
        return float(1 - taken_BTK.sum() / requested.sum())


def expert_layers(model: nn.Module) -> dict[str, Experts]:
    """The layers of experts by name, such as ``blocks.1.feedforward``; empty where there are none."""
    return {name: part for name, part in model.named_modules() if isinstance(part, Experts)}


@contextmanager
def record_routing(model: nn.Module) -> Iterator[dict[str, list[RoutingRecord]]]:
    """Record routing: within this context every forward pass and step adds a record for each layer of
    experts.

    Yields the records by the name of the layer, such as ``blocks.1.feedforward``, one for each pass.
    """
    layers = expert_layers(model)
    records: dict[str, list[RoutingRecord]] = {name: [] for name in layers}

    def watch(layer: Experts, layer_records: list[RoutingRecord]) -> None:
        def add(routing: Routing, valid_BT: Tensor | None) -> None:
            layer_records.append(_record(layer, routing, valid_BT))

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
    trained_BTK = routing.kept_BTK
    if layer.config.choice == "token":
        trained_BTK = layer.router.within_capacity(
            routing.expert_BTK, valid_BT, routing.documents_BT, training=True
        )
    if valid_BT is None:
        valid_BT = torch.ones_like(score_BTX[..., 0], dtype=torch.bool)
    requested_BTK = valid_BT[..., None].expand_as(routing.expert_BTK)
    taken_BTK = requested_BTK if routing.kept_BTK is None else requested_BTK & routing.kept_BTK
    return RoutingRecord(
        num_experts=layer.config.num_experts,
        expert_BTK=routing.expert_BTK,
        gate_BTK=routing.gate_BTK.detach(),
        chosen_BTK=requested_BTK if layer.config.choice == "token" else taken_BTK,
        taken_BTK=taken_BTK,
        valid_BT=valid_BT,
        logits_BTX=routing.logits_BTX.detach(),
        entropy_BT=torch.special.entr(score_BTX).sum(-1),
        dropping=trained_BTK is not None and layer.config.choice == "token",
        taken_in_training_BTK=requested_BTK if trained_BTK is None else requested_BTK & trained_BTK,
    )
