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
from dataclasses import asdict, dataclass, field
from pathlib import Path

from typing_extensions import TypedDict

from archbench.experiments.runtime.errors import CheckpointError, RunError
from archbench.experiments.runtime.json_state import read_json
from archbench.experiments.runtime.run_status import RunStatus
from archbench.experiments.tracking.run_files import RunResult
from archbench.experiments.tracking.run_folder import RunFolder
from archbench.slurm.allocation import Allocation


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
    """The arguments of archbench.experiments.train."""
    task: int | None = None
    """Index of the array task that trains it; None if this submission does not."""
    tokens: int | None = None
    """Training tokens; None for a run that was rejected."""
    peak_flops: float | None = None
    """Peak floating-point operations per second of each of its GPUs; None if its device has no value."""
    allocation: Allocation = field(default_factory=Allocation)
    """Resources of its array task."""

    @property
    def status(self) -> str | None:
        """``status`` of result.json; None if it is missing, ``unreadable`` if it is damaged."""
        try:
            result = self.result()
        except RunError:
            return str(RunStatus.UNREADABLE)
        return None if result is None else str(result.status)

    @property
    def message(self) -> str:
        """First line of ``message`` of result.json, or of the error if it is damaged; empty without any."""
        try:
            result = self.result()
        except RunError as error:
            return str(error).partition("\n")[0]
        return "" if result is None else (result.message or "").partition("\n")[0]

    def result(self) -> RunResult | None:
        """Return result.json; None if it is missing. Raises RunError if it is damaged."""
        return RunFolder(Path(self.folder)).result()


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One call of ``slurm.submit``."""

    folder: Path
    runs: list[StudyRun]

    @property
    def name(self) -> str:
        """Name of its array job in the queue."""
        return job_name(self.folder)


class AllocationRecord(TypedDict):
    """An ``Allocation`` in runs.json."""

    nodes: int
    tasks_per_node: int
    gpus_per_node: int
    time: str


class StudyRunRecord(TypedDict):
    """A ``StudyRun`` in runs.json."""

    key: str
    name: str
    seed: int
    folder: str
    words: list[str]
    task: int | None
    tokens: int | None
    peak_flops: float | None
    allocation: AllocationRecord


class SubmissionRecord(TypedDict):
    """runs.json."""

    format: int
    runs: list[StudyRunRecord]


def job_name(folder: Path) -> str:
    """Return the name of the array job of the submission in ``runs/STUDY/slurm/ID``."""
    return "-".join(["archbench", *(path.name for path in (*folder.parents[1:2], folder))])


def new_folder(study: Path) -> Path:
    """Return the folder for a new submission, without creating it. Names sort by time."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    return study / "slurm" / f"{stamp}-{uuid.uuid4().hex[:6]}"


def write_submission(folder: Path, runs: Sequence[StudyRun]) -> None:
    """Write runs.json into a new folder."""
    folder.mkdir(parents=True)
    text = json.dumps({"format": 1, "runs": [asdict(run) for run in runs]}, indent=1)
    (folder / "runs.json").write_text(text + "\n")


def read_submission(folder: Path) -> Submission:
    """Return the submission in a folder. Raises CheckpointError if its record is missing or damaged."""
    remedy = f"cancel its jobs ({job_name(folder)}), remove {folder}, and submit again"
    record = read_json(folder / "runs.json", SubmissionRecord, remedy)
    if record is None:
        raise CheckpointError(f"{folder / 'runs.json'}: is missing: {remedy}")
    runs = [
        StudyRun(
            key=run["key"], name=run["name"], seed=run["seed"], folder=run["folder"], words=run["words"],
            task=run["task"], tokens=run["tokens"], peak_flops=run["peak_flops"],
            allocation=Allocation(**run["allocation"]),
        )
        for run in record["runs"]
    ]  # fmt: skip
    return Submission(folder=folder, runs=runs)


def submissions(study: Path) -> list[Submission]:
    """Return all submissions of a study, oldest first."""
    return [read_submission(path.parent) for path in sorted(study.glob("slurm/*/runs.json"))]
