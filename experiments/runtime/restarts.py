"""Stops a job that SLURM starts again and again without any progress."""

from __future__ import annotations

import json
import os
from pathlib import Path

from experiments.runtime.errors import RunError
from experiments.tracking.run_folder import write_json

MOST = 3
"""Restarts of a job without a new checkpoint, after which it is given up."""


def check_progress(folder: Path, step: int) -> None:
    """Counts the restarts of a SLURM job that found the run where the one before did.

    The count stands in ``restarts.json`` and begins anew with a job of one's own making, so that issuing
    the command again tries again.

    Args:
        folder: the run folder.
        step: that of the newest checkpoint.

    Raises:
        RunError: the third restart in a row without a new checkpoint.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return
    restart = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    path = folder / "restarts.json"
    try:
        before = json.loads(path.read_text())
    except (OSError, ValueError):
        before = {}
    again = before.get("job") == job and restart > before.get("restart", 0) and step <= before.get("step", 0)
    idle = before.get("without_progress", 0) + 1 if again else 0
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, {"job": job, "restart": restart, "step": step, "without_progress": idle})
    if idle >= MOST:
        raise RunError(
            f"{folder}: job {job} restarted {idle} times without a new checkpoint (still at step {step}). "
            "See its output for why it dies, and submit it again when that is mended"
        )
