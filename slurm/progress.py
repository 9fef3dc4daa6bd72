"""How far a run is and how well it uses its GPUs: speed, utilisation, time left, and time that trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.run.live_view import amount, last_rows
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
    rows = last_rows(Path(run.folder) / "metrics.jsonl")
    step = max((int(row["step"]) for row in rows.values()), default=None)
    training = (run.result() or {}).get("training") or rows.get("train") or {}
    tokens, seconds = amount(training, "tokens"), amount(training, "seconds")
    flops, device_seconds = amount(training, "flops"), amount(training, "device_seconds")
    speed = amount(training, "tokens_per_second") or (tokens / seconds if seconds else 0.0)
    peak = run.peak_flops
    return Progress(
        step=step,
        seconds=seconds,
        tokens_per_second=speed or None,
        mfu=flops / (device_seconds * peak) if peak and device_seconds else None,
        seconds_left=max(0.0, run.tokens - tokens) / speed if run.tokens and speed else None,
    )
