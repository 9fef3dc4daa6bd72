"""The cells of a study as jobs see them, and the record of a submission.

``runs/STUDY/slurm/ID/cells.json`` lists every cell of the study: its run folder, the
words that train it, and the array task it was given (none for a cell that was done or
on its way). The jobs' name ends in ID, so the queue can be asked about a submission
whatever became of the process that made it.
"""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a study."""

    key: str
    """The run key."""
    name: str
    """Backbone, task and scale."""
    seed: int
    folder: str
    """The run folder, absolute."""
    words: list[str]
    """What experiments.train is told."""
    task: int | None = None
    """Index of the array task that trains it; None if this submission does not."""

    @property
    def status(self) -> str | None:
        """``status`` of result.json; None where there is none."""
        result = self.result()
        return None if result is None else str(result["status"])

    def result(self) -> dict[str, Any] | None:
        try:
            return json.loads((Path(self.folder) / "result.json").read_text())
        except FileNotFoundError:
            return None


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One call of ``slurm.submit``."""

    folder: Path
    cells: list[Cell]

    @property
    def name(self) -> str:
        """The name of its array in the queue."""
        return job_name(self.folder)


def job_name(folder: Path) -> str:
    """The name of the array of the submission kept in ``runs/STUDY/slurm/ID``."""
    return f"archbench-{folder.parents[1].name}-{folder.name}"


def new_folder(study: Path) -> Path:
    """Where a new submission will be kept; nothing is made. Names sort by time."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    return study / "slurm" / f"{stamp}-{uuid.uuid4().hex[:6]}"


def write_submission(folder: Path, cells: Sequence[Cell]) -> None:
    folder.mkdir(parents=True)
    text = json.dumps({"format": 1, "cells": [asdict(cell) for cell in cells]}, indent=1)
    (folder / "cells.json").write_text(text + "\n")


def read_submission(folder: Path) -> Submission:
    record = json.loads((folder / "cells.json").read_text())
    return Submission(folder=folder, cells=[Cell(**cell) for cell in record["cells"]])


def submissions(study: Path) -> list[Submission]:
    """Every submission of a study, oldest first."""
    return [read_submission(path.parent) for path in sorted(study.glob("slurm/*/cells.json"))]
