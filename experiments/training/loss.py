"""The training loss: the objective's loss plus auxiliary losses of the backbone.

One of these is the load-balancing loss of a mixture of experts: ``architectures.layers.moe.balance_loss``.
"""

from __future__ import annotations

from torch import Tensor, nn

from architectures.backbone import Backbone
from experiments.objectives.objective import Objective, View
from experiments.runtime.precision import autocast


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
