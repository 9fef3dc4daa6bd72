"""Evaluation of the model that is trained, and a record of the routing of its experts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from archbench.architectures.backbone import Backbone
from archbench.architectures.layers.block import FeedForward
from archbench.experiments.evaluation.measure import measure
from archbench.experiments.objectives.objective import Objective
from archbench.experiments.tasks.metrics import Metric
from archbench.experiments.tracking.run_folder import RunFolder
from archbench.experiments.training.micro_batcher import MicroBatcher
from archbench.experiments.training.optimizer_step import averaged
from archbench.experiments.training.parallel.strategy import Strategy
from archbench.experiments.training.routing_probe import RoutingProbe

if TYPE_CHECKING:
    from archbench.experiments.training.routing_probe import RoutingProbe

EVALUATION_TOKENS = 8192
"""Tokens of a forward pass without gradients where training has fewer: small batches are slow."""
EVALUATION_LOGITS = 2**21
"""Maximum number of their logits: with a large vocabulary, evaluation has as many tokens as training."""


class Evaluator:
    """Evaluates the model that a trainer trains."""

    def __init__(
        self,
        model: Backbone,
        objective: Objective,
        *,
        strategy: Strategy,
        optimizer: torch.optim.Optimizer,
        micro_batcher: MicroBatcher,
        precision: str,
        before_batch: Callable[[], None],
    ) -> None:
        """``before_batch`` is called between batches and may raise to end an evaluation early."""
        self.model, self.objective, self.strategy = model, objective, strategy
        self.optimizer, self.micro_batcher = optimizer, micro_batcher
        self.precision, self.before_batch = precision, before_batch
        self.has_experts = any(isinstance(part, FeedForward) and part.num_experts for part in model.modules())

    def evaluate(self, split: str, examples: int | None, objective: Objective | None = None) -> list[Metric]:
        """Return the metrics on a split, that of the task first; ``objective`` replaces that of the run."""
        objective = objective or self.objective
        trained, evaluated = self.objective.task.sequence_length, objective.task.sequence_length
        full = self.micro_batcher.size
        least = min(EVALUATION_TOKENS, EVALUATION_LOGITS // self.model.vocab_size)

        def work(rows: int) -> list[Metric]:
            tokens = max(rows * trained, least if rows == full else 0)  # fewer after it ran out of memory
            return measure(
                self.model,
                objective,
                objective.task,
                split,
                examples=examples,
                batch_size=max(1, tokens // evaluated),
                precision=self.precision,
                before_batch=self.before_batch,
                shard=self.strategy.dims.evaluation_shard(),
                by_slice=split == "test" and objective is self.objective,
            )

        with averaged(self.optimizer), self.strategy.evaluating():
            return self.micro_batcher.run(work)

    def record_routing(self, folder: RunFolder, step: int) -> dict[str, float | list[float]]:
        """Record which experts a few fixed examples choose. Return values for each layer of experts.

        Returns an empty dict, without computation, if the model has no experts.
        """
        if not self.has_experts:
            return {}
        with averaged(self.optimizer), self.strategy.evaluating():
            return self.micro_batcher.run(
                lambda rows: self.router_probe.record(folder, step, batch_size=rows, precision=self.precision)
            )

    @cached_property
    def router_probe(self) -> RoutingProbe:
        return RoutingProbe(self.model, self.objective)
