"""Evaluation of the model that is trained, and the routing of its experts on a few fixed examples.

The examples are the first of the validation split, as the objective presents them in training, always with
the same masks: only the model changes from one recording to the next. Without experts no rows are recorded.

``routing/step-N.safetensors`` has, by the name of each layer of experts, the choices (N, K) int16 of all its
tokens, padding left out; -1 where the experts choose and no expert selects the token.

Shapes: B batch, T length, N tokens without padding, K choices of a token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from safetensors.torch import save
from torch import Tensor

from architectures.backbone import Backbone, Output
from architectures.layers.moe.routing_record import RoutingRecord, expert_layers, record_routing
from experiments.evaluation.measure import EVALUATION_SEED, measure
from experiments.objectives.objective import Objective, View
from experiments.runtime.atomic_io import write_bytes
from experiments.runtime.device import inference
from experiments.runtime.seeds import router_probe_seed
from experiments.tasks.metrics import Metric
from experiments.tracking.run_folder import RunFolder
from experiments.training.micro_batcher import MicroBatcher
from experiments.training.optimizer_step import averaged
from experiments.training.parallel.strategy import Strategy


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
        self.router_probe = RoutingProbe(model, objective)

    def evaluate(self, split: str, examples: int | None, objective: Objective | None = None) -> list[Metric]:
        """Return the metrics on a split, that of the task first; ``objective`` replaces that of the run."""
        objective = objective or self.objective
        trained, evaluated = self.objective.task.sequence_length, objective.task.sequence_length

        def work(rows: int) -> list[Metric]:
            return measure(
                self.model,
                objective,
                objective.task,
                split,
                examples=examples,
                batch_size=min(rows, max(1, rows * trained // evaluated)),  # no more tokens than in training
                precision=self.precision,
                before_batch=self.before_batch,
                shard=self.strategy.dims.evaluation_shard(),
                by_slice=split == "test" and objective is self.objective,
            )

        with averaged(self.optimizer), self.strategy.evaluating():
            return self.micro_batcher.run(work)

    def record_routing(self, folder: RunFolder, step: int) -> dict[str, float | list[float]]:
        """Record which experts a few fixed examples choose. Return values for each layer of experts."""
        with averaged(self.optimizer), self.strategy.evaluating():
            return self.micro_batcher.run(
                lambda rows: self.router_probe.record(folder, step, batch_size=rows, precision=self.precision)
            )


PROBE_TOKENS = 2048
"""Task tokens of the examples that are recorded; at least one example, however long."""

STATISTICS = (
    "load_entropy", "max_violation", "mean_violation", "dropped_share", "dropped_in_training", "gate_mean",
    "router_entropy", "logit_norm",
)  # fmt: skip
"""Properties of ``RoutingRecord`` in a row of type ``routing`` for each layer, in addition to ``load``."""


def probe_view(objective: Objective, split: str, start: int, count: int) -> View:
    """Examples ``start .. start + count`` as in training, with the same masks in every call."""
    batch = objective.task.batch(split, EVALUATION_SEED, start, count)
    if batch.whole:  # in training every token of a window is scored
        batch = replace(batch, answer_BT=batch.valid_BT)
    generator = torch.Generator().manual_seed(router_probe_seed(split, start))
    return objective.view(batch, generator)


def read_tokens(view: View, layer: str) -> Tensor:
    """The tokens (B, T) that a layer of experts works on: the source's in an encoder with a decoder."""
    if view.source_BS is not None and layer.startswith("encoder."):
        return view.source_BS
    return view.tokens_BT if view.clean_BT is None else torch.cat([view.tokens_BT, view.clean_BT], dim=1)


def routed(
    model: Backbone, view: View, *, batch_size: int, precision: str
) -> tuple[dict[str, RoutingRecord], list[Output]]:
    """Run a model on a view in evaluation mode; return the routing of each layer, and the outputs."""
    device = next(model.parameters()).device
    outputs = []
    with inference(model, device, precision), record_routing(model) as records:
        for start in range(0, len(view.tokens_BT), batch_size):
            outputs.append(view.rows(start, start + batch_size).to(device).run(model))
    return {layer: RoutingRecord.joined(parts) for layer, parts in records.items()}, outputs


def choices(record: RoutingRecord) -> Tensor:
    """The experts that the tokens chose, or that chose them, (N, K) int16; see the module's docstring.

    A token that comes to a full expert has chosen it all the same.
    """
    expert_BTK = record.expert_BTK.masked_fill(~record.chosen_BTK, -1)
    return expert_BTK[record.valid_BT].to(torch.int16).cpu()


class RoutingProbe:
    """Records the routing of one model as it is trained."""

    def __init__(self, model: Backbone, objective: Objective) -> None:
        self.model, self.objective = model, objective

    @cached_property
    def _view(self) -> View:
        task = self.objective.task
        available = task.num_examples("validation")
        wanted = max(1, PROBE_TOKENS // task.sequence_length)
        return probe_view(
            self.objective, "validation", 0, wanted if available is None else min(wanted, available)
        )

    def record(
        self, folder: RunFolder, step: int, *, batch_size: int, precision: str
    ) -> dict[str, float | list[float]]:
        """Write the choices into the run folder; return the values of each layer, ``LAYER/NAME``.

        Returns an empty dict, without computation, if the model has no experts.
        """
        if not expert_layers(self.model):
            return {}
        records, _ = routed(self.model, self._view, batch_size=batch_size, precision=precision)
        if folder.writes:
            folder.routing.mkdir(exist_ok=True)
            tensors = {layer: choices(record) for layer, record in records.items()}
            write_bytes(folder.routing / f"step-{step:08d}.safetensors", save(tensors))
        row: dict[str, float | list[float]] = {}
        for layer, record in records.items():
            row[f"{layer}/load"] = record.load_X.tolist()
            row |= {f"{layer}/{name}": getattr(record, name) for name in STATISTICS}
        return row
