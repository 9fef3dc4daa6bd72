"""Record of a submission: the runs of a study and the array task of each.

``runs/STUDY/slurm/ID/runs.json`` lists every run of the study: its run folder, its
overrides for ``experiments.train``, and its array task (none for a run that had ended
or was in the queue). The name of the jobs ends in ID, so that the queue can be searched
for a submission even if the process that made it was killed.
"""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.runtime.errors import RunError
from experiments.runtime.run_status import RunStatus
from experiments.tracking.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """One run of a study."""

    key: str
    """The run key."""
    name: str
    """Backbone, task and scale."""
    seed: int
    folder: str
    """The run folder, absolute."""
    words: list[str]
    """The arguments of experiments.train."""
    task: int | None = None
    """Index of the array task that trains it; None if this submission does not."""

    @property
    def status(self) -> str | None:
        """Return ``status`` of result.json; None if there is none."""
        result = self.result()
        return None if result is None else str(result["status"])

    @property
    def message(self) -> str:
        """Return the first line of ``message`` of result.json; empty where there is none."""
        return str((self.result() or {}).get("message") or "").partition("\n")[0]

    def result(self) -> dict[str, Any] | None:
        """Return result.json; None if there is none, and status and reason alone where it is damaged."""
        try:
            return RunFolder(Path(self.folder)).result()
        except RunError as error:
            return {"status": str(RunStatus.UNREADABLE), "message": str(error)}


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One call of ``slurm.submit``."""

    folder: Path
    runs: list[StudyRun]

    @property
    def name(self) -> str:
        """Return the name of its array job in the queue."""
        return job_name(self.folder)


def job_name(folder: Path) -> str:
    """Return the name of the array job of the submission in ``runs/STUDY/slurm/ID``."""
    return f"archbench-{folder.parents[1].name}-{folder.name}"


def new_folder(study: Path) -> Path:
    """Return the folder for a new submission, without creating it. Names sort by time."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    return study / "slurm" / f"{stamp}-{uuid.uuid4().hex[:6]}"


def write_submission(folder: Path, runs: Sequence[StudyRun]) -> None:
    """Write runs.json into a new folder."""
    folder.mkdir(parents=True)
    text = json.dumps({"format": 2, "runs": [asdict(run) for run in runs]}, indent=1)
    (folder / "runs.json").write_text(text + "\n")


def read_submission(folder: Path) -> Submission:
    """Return the submission in a folder."""
    record = json.loads((folder / "runs.json").read_text())
    return Submission(folder=folder, runs=[StudyRun(**run) for run in record["runs"]])


def submissions(study: Path) -> list[Submission]:
    """Return all submissions of a study, oldest first."""
    return [read_submission(path.parent) for path in sorted(study.glob("slurm/*/runs.json"))]
