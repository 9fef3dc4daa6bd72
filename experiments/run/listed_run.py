"""The runs of a command line and their states, without their costs. Builds no model and opens no data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from archbench.experiments.config.cells import Cell
from archbench.experiments.config.sections import read_sections
from archbench.experiments.run.settings import Settings, read_settings
from archbench.experiments.run.skipped_cells import stored_status
from archbench.experiments.runtime.errors import CheckpointError, RunError
from archbench.experiments.runtime.run_status import RunStatus
from archbench.experiments.tracking.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class ListedRun:
    """A run that a command line asks for."""

    words: list[str]
    """Overrides that choose it."""
    task: str
    backbone: str
    seed: int
    status: str
    """Of ``run_status``, or ``refused``."""
    cell: str | None = None
    digest: str | None = None
    folder: str | None = None
    """These are None for a rejected run."""
    refused: str | None = None
    """Reason why it is rejected."""


def listed_runs(cells: Sequence[Cell]) -> list[ListedRun]:
    """Return the runs of those cells that can be composed."""
    return [_listed(cell) for cell in cells if not cell.mistake]


def _listed(cell: Cell) -> ListedRun:
    cfg = cell.select()
    words, task, backbone = list(cell.words), str(cfg.names.task), str(cfg.names.backbone)
    try:
        settings = read_settings(read_sections(cfg), untuned=True)
    except RunError as error:
        return ListedRun(
            words=words, task=task, backbone=backbone, seed=cfg.seed, status="refused", refused=str(error)
        )
    return ListedRun(
        words=words,
        task=task,
        backbone=backbone,
        seed=settings.seed,
        status=run_status(settings),
        cell=settings.cell,
        digest=settings.digest,
        folder=str(settings.folder),
    )


def run_status(settings: Settings) -> str:
    """Return ``done``, ``stored``, ``failed: WHY``, ``unreadable: WHY``, ``begun, step N`` or ``missing``."""
    folder = RunFolder(settings.folder)
    try:
        result = folder.result()
    except CheckpointError as error:  # the other runs are listed nevertheless
        return f"{RunStatus.UNREADABLE}: {str(error).splitlines()[0]}"
    if result is not None:
        if result.status == RunStatus.COMPLETE:
            return "done"
        return f"{result.status}: {str(result.message).splitlines()[0]}"
    if (stored := stored_status(settings)) is not None:
        return "stored" if stored == "complete" else f"stored: {stored}"
    steps = sorted(folder.checkpoints.glob("step-*"))
    if steps:
        return f"begun, step {int(steps[-1].name.split('-')[1])}"
    return "begun" if folder.root.exists() else "missing"
