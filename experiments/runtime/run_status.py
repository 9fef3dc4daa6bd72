"""The statuses of a run: those that its record holds, and those that a reader of its folder finds."""

from __future__ import annotations

from enum import StrEnum


class RunStatus(StrEnum):
    """Outcome of a run."""

    COMPLETE = "complete"
    """Trained and evaluated. Issued again, it prints its score."""
    DIVERGED = "diverged"
    """Its loss or a gradient was no finite number, or its score is worse than that of the uniform code."""
    OOM = "oom"
    """Model and batch did not fit into memory."""
    FAILED = "failed"
    """An error that may not come again, such as a full disk. Issued again, it is run from its last
    checkpoint."""
    REFUSED = "refused"
    """It has not begun: its configuration, its size or its data cannot be (exit code 2 or 3). Issued again,
    it is run if the reason is gone."""
    PREEMPTED = "preempted"
    """It was told to stop, and has saved. The same command continues it."""
    INCOMPLETE = "incomplete"
    """In no record: it has begun and has no result. A process writes it, or it was killed: then, issued
    again, it continues from its last checkpoint."""
    UNREADABLE = "unreadable"
    """In no record: one of its files is damaged, or of another version. The message names the file."""


FINAL = (RunStatus.COMPLETE, RunStatus.DIVERGED, RunStatus.OOM)
"""Results that a new run would only repeat; runs with any other status are run again."""
