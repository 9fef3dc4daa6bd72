"""Base class of the fine-tuning objectives: they read the full text and train a readout.

Shapes: B batch, T length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from archbench.architectures.backbone import Backbone, Capabilities
from archbench.architectures.layers.readout import POOLINGS
from archbench.experiments.objectives.objective import Objective, Score, View
from archbench.experiments.runtime.errors import DataError, nearest
from archbench.experiments.tasks.task import Batch

AUTO = "auto"


class ReadoutObjective(Objective):
    """The model reads the full text, and ``Output.readout`` is compared with the labels."""

    @classmethod
    def missing_capability(cls, capabilities: Capabilities) -> str | None:
        if capabilities.causal or capabilities.bidirectional:
            return None
        return "a causal or a bidirectional backbone"

    def view(self, batch: Batch, generator: torch.Generator) -> View:
        return self.answer_view(batch)

    def with_scored_positions(self, view: View) -> View:
        return view

    def likelihood_score(self, model: Backbone, batch: Batch, generators: Sequence[torch.Generator]) -> Score:
        raise DataError(f"{type(self).__name__} learns {self.targets}, it gives no likelihood of a text")


def check_pooling(pooling: str) -> None:
    """Raises ValueError for a pooling that does not exist."""
    options = (AUTO, *POOLINGS)
    if pooling not in options:
        raise ValueError(f"pooling={pooling!r} is unknown{nearest(pooling, options)}")


def check_dropout(dropout: float) -> None:
    """Raises ValueError for what is no probability below 1."""
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout} must be in [0, 1)")


def pooling_for(pooling: str, capabilities: Capabilities) -> str:
    """``auto`` is the first token if it attends to all tokens, else the last, which follows all tokens."""
    if pooling == AUTO:
        return "first" if capabilities.bidirectional else "last"
    if pooling == "first" and not capabilities.bidirectional:
        raise DataError(
            "objective.pooling=first: in a causal backbone the first token has read nothing but itself; "
            "use last, mean or auto"
        )
    return pooling


def valid_or_none(batch: Batch) -> torch.Tensor | None:
    """``valid_BT``, or None without padding, so that attention needs no mask."""
    return None if batch.valid_BT.all() else batch.valid_BT
