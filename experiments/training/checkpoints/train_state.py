"""The state of training, without weights and the optimizer's moments, that a run needs to continue."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from archbench.experiments.training.loss import LossAnomalies


@dataclass
class TrainState:
    """Progress of a run, saved with each checkpoint. Times are summed over all sessions of the run."""

    step: int = 0
    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0
    """Time spent in training steps; evaluation and saving are not counted."""
    device_seconds: float = 0.0
    """The same, summed over all processes."""
    data_seconds: float = 0.0
    """Part of ``seconds`` in which batches were made."""
    compile_seconds: float = 0.0
    """Time that ``torch.compile`` took in training steps; not part of ``seconds``."""
    window_loss: float = 0.0
    """Sum of the losses since the last log line."""
    window_seconds: float = 0.0
    window_data: float = 0.0
    window_skipped: int = 0
    """Steps skipped since the last log line."""
    anomalies: LossAnomalies = field(default_factory=LossAnomalies)
    fallbacks: list[str] = field(default_factory=list)
    """Damaged checkpoints that were replaced by an older one, each with its reason."""

    random_sizes: list[int] = field(default_factory=list)
    """Micro-batch sizes of steps in which the model drew random numbers, such as dropout. They are drawn for
    a micro-batch, so another size gives other numbers."""

    @classmethod
    def restore(cls, saved: dict[str, Any]) -> TrainState:
        """Return the state that ``dataclasses.asdict`` gave. Raises TypeError for one with other keys."""
        return cls(**{**saved, "anomalies": LossAnomalies(**saved["anomalies"])})

    def contradiction(self, tokens_per_step: int) -> str | None:
        """Return the counter that does not fit the steps of a run, with both values; None if all do."""
        tokens = self.step * tokens_per_step
        if self.tokens != tokens:
            return f"train_state.tokens is {self.tokens}, not {tokens} as for {self.step} steps"
        for name in ("seconds", "data_seconds", "device_seconds"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                return f"train_state.{name} is {value}, no time"
        if self.device_seconds < self.seconds * (1 - 1e-6):
            return (
                f"train_state.device_seconds is {self.device_seconds}, less than the {self.seconds} seconds"
            )
        return None

    def count_step(
        self,
        *,
        tokens: int,
        flops: float,
        seconds: float,
        data_seconds: float,
        compile_seconds: float,
        processes: int,
    ) -> None:
        """Count a step, whether it was taken or skipped."""
        self.step += 1
        self.tokens += tokens
        self.flops += flops
        self.seconds += seconds
        self.device_seconds += seconds * processes
        self.data_seconds += data_seconds
        self.compile_seconds += compile_seconds
        self.window_seconds += seconds
        self.window_data += data_seconds

    def close_window(
        self, row: dict[str, float], *, log_every: int, tokens_per_step: int
    ) -> dict[str, float]:
        """Return the row of metrics for the steps since the last one, and begin the next window.

        Args:
            row: values of the last step only.
        """
        steps = (self.step - 1) % log_every + 1
        counted = steps - self.window_skipped
        row = {
            "loss": self.window_loss / counted if counted else float("nan"),
            **row,
            "tokens_per_second": steps * tokens_per_step / self.window_seconds,
            "data_share": self.window_data / self.window_seconds,
        }
        self.window_loss = self.window_seconds = self.window_data = 0.0
        self.window_skipped = 0
        return row
