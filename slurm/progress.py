"""Progress of a run and its use of GPUs: speed, utilisation, remaining time, and goodput."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from archbench.experiments.run.live_view import last_rows
from archbench.experiments.runtime.errors import RunError
from archbench.experiments.tracking.run_files import TrainingSummary, TrainRow
from archbench.slurm.submission import StudyRun


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Training progress from the record of a run. A value that is not recorded is None."""

    step: int | None = None
    """Step of the last row."""
    seconds: float = 0.0
    """Time spent in training steps, over all sessions."""
    tokens_per_second: float | None = None
    """Latest speed, over all processes."""
    mfu: float | None = None
    """Model FLOPs utilisation over all sessions: model FLOPs as a fraction of the peak of its GPUs."""
    seconds_left: float | None = None
    """Remaining seconds of training at that speed."""

    def goodput(self, allocated: float) -> float | None:
        """Return training seconds as a fraction of allocated seconds; None if none were allocated."""
        return self.seconds / allocated if allocated > 0 else None


def progress(run: StudyRun) -> Progress:
    """Return the progress of a run, from result.json if it has ended, else from metrics.jsonl."""
    train, validation = last_rows(Path(run.folder) / "metrics.jsonl")
    step = max((row.step for row in (train, validation) if row is not None), default=None)
    training: TrainingSummary | TrainRow | None = train
    with contextlib.suppress(RunError):  # the table reports damaged files
        if (result := run.result()) is not None and result.training is not None:
            training = result.training
    if training is None:
        return Progress(step=step)
    speed, peak = training.tokens_per_second, run.peak_flops
    return Progress(
        step=step,
        seconds=training.seconds,
        tokens_per_second=speed,
        mfu=training.flops / (training.device_seconds * peak) if peak and training.device_seconds else None,
        seconds_left=max(0.0, run.tokens - training.tokens) / speed if run.tokens and speed else None,
    )
