"""The routing of a model's experts on a few fixed examples, recorded during training.

The examples are the first of the validation split, as the objective presents them in training, always with
the same masks: only the model changes from one recording to the next.

``routing/step-N.safetensors`` has, by the name of each layer of experts, the choices (N, K) int16 of all its
tokens, padding left out; -1 where the experts choose and no expert selects the token.

Shapes: B batch, T length, N tokens without padding, K choices of a token.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch
from safetensors.torch import save
from torch import Tensor

from archbench.architectures.backbone import Backbone, Output
from archbench.architectures.layers.moe.routing_record import RoutingRecord, record_routing
from archbench.experiments.evaluation.measure import EVALUATION_SEED
from archbench.experiments.objectives.objective import Objective, View
from archbench.experiments.runtime.atomic_io import write_bytes
from archbench.experiments.runtime.device import inference
from archbench.experiments.runtime.seeds import router_probe_seed
from archbench.experiments.tracking.run_folder import RunFolder

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
        """Write the choices into the run folder; return the values of each layer, ``LAYER/NAME``."""
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
