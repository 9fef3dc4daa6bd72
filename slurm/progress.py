"""How far a run is and how well it uses its GPUs: speed, utilisation, time left, and time that trained."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from experiments.run.live_view import last_rows
from experiments.runtime.errors import RunError
from experiments.tracking.run_files import TrainingSummary, TrainRow
from slurm.submission import StudyRun


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What the record of a run says of its training so far. What it does not say is None."""

    step: int | None = None
    """Step of the last row."""
    seconds: float = 0.0
    """Time spent in training steps, over all sessions."""
    tokens_per_second: float | None = None
    """Of all its processes, at last."""
    mfu: float | None = None
    """Model FLOPs utilisation over all sessions: the share of the stated peak of its GPUs that trained."""
    seconds_left: float | None = None
    """Seconds of training until its tokens are spent, at that speed."""

    def goodput(self, allocated: float) -> float | None:
        """Return the share of the allocated seconds that trained; None where none were allocated."""
        return self.seconds / allocated if allocated > 0 else None


def progress(run: StudyRun) -> Progress:
    """Return the progress of a run, from result.json where it has ended, else from metrics.jsonl."""
    train, validation = last_rows(Path(run.folder) / "metrics.jsonl")
    step = max((row.step for row in (train, validation) if row is not None), default=None)
    training: TrainingSummary | TrainRow | None = train
    with contextlib.suppress(RunError):  # the table shows what is damaged
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
