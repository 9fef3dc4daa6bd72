"""The training loss, and its anomalies: steps that are not finite are skipped or end the run; spikes count.

The loss is that of the objective plus auxiliary losses of the backbone, such as the load-balancing loss of a
mixture of experts (``architectures.layers.moe.router``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from archbench.architectures.backbone import Backbone
from archbench.experiments.objectives.objective import Objective, View
from archbench.experiments.runtime.atomic_io import write_json
from archbench.experiments.runtime.device import autocast
from archbench.experiments.runtime.errors import DivergedError


class Loss(nn.Module):
    """The model with its objective, as a module: DDP then sees which parameters the loss depends on."""

    def __init__(self, model: Backbone, objective: Objective, precision: str) -> None:
        super().__init__()
        self.model, self.objective, self.precision = model, objective, precision

    def forward(self, part: View, count: Tensor, rows: int) -> Tensor:
        """Return the contribution of some rows to the loss of the batch.

        Args:
            part: the rows.
            count: scored tokens of the full batch, by which the sum of the objective is divided.
            rows: sequences of the full batch, by which auxiliary losses are divided.
        """
        with autocast(part.tokens_BT.device, self.precision):
            output = part.run(self.model)
        loss = self.objective.loss(output, part)[0] / count
        for auxiliary in self.objective.auxiliary(output, part).values():
            loss = loss + auxiliary / rows
        return loss


MOST_IN_A_ROW = 5
MOST_IN_ALL = 20
"""Steps that ``skip`` leaves out before the run counts as diverged."""
WINDOW = 128
SIGMAS = 6
"""A finite loss above the mean of the last 128 by six of their standard deviations is a spike (as OLMo-core
counts them)."""


@dataclass
class LossAnomalies:
    """Anomalies so far, saved and resumed with the state of training."""

    skipped: int = 0
    skipped_in_a_row: int = 0
    spikes: int = 0
    recent: list[float] = field(default_factory=list)
    """The last losses, at most ``WINDOW``."""

    def record_loss(self, loss: float) -> None:
        """Count a finite loss, and a spike if it is one."""
        self.skipped_in_a_row = 0
        if len(self.recent) == WINDOW:
            recent = np.array(self.recent)
            self.spikes += int(loss > recent.mean() + SIGMAS * recent.std())
        self.recent = [*self.recent, loss][-WINDOW:]

    def skip(self, description: str, policy: str) -> None:
        """Count a skipped step. Raises DivergedError if ``policy`` does not allow it."""
        if policy == "stop":
            raise DivergedError(f"{description}; the weights were not updated")
        self.skipped += 1
        self.skipped_in_a_row += 1
        for count, most, how in (
            (self.skipped_in_a_row, MOST_IN_A_ROW, "in a row"),
            (self.skipped, MOST_IN_ALL, "in all"),
        ):
            if count > most:
                raise DivergedError(
                    f"{description}; {most} steps {how} were left out before it (trainer.non_finite=skip)"
                )


def not_finite(loss: float, norm: float) -> str | None:
    """Return a description of which of the two is not finite; None if both are finite."""
    for name, value in (("loss", loss), ("gradient norm", norm)):
        if not math.isfinite(value):
            return f"{name} is {value}"
    return None


def write_report(folder: Path, step: int, bad: list[str], record: dict[str, Any]) -> Path:
    """Write everything needed, with the previous checkpoint, to repeat a step that was not finite.

    ``bad`` names the parameters with non-finite gradients. The batch is named by its position in the
    data, from which it follows, as do masks and dropout.
    """
    path = folder / f"step-{step:08d}.json"
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, {"step": step, **record, "gradients_not_finite": bad})
    return path
