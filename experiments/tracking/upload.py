"""Mirrors runs that have ended to W&B, from their records and after the fact."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from experiments.config.schema import TrackingConfig
from experiments.runtime.atomic_io import write_json
from experiments.runtime.errors import ConfigError, RunError, nearest_folder
from experiments.runtime.json_state import read_mark
from experiments.runtime.run_status import RunStatus
from experiments.runtime.yaml_state import read_yaml
from experiments.tracking.run_folder import RunFolder
from experiments.tracking.study_folders import StudyFolders
from experiments.tracking.summary import derived
from experiments.tracking.tracker import RunIdentity, open_tracker

MARK = "wandb-uploaded.json"


def study_folders(runs: Path, study: str) -> list[Path]:
    """The run folders of a study that have begun. Raises ConfigError where there is none."""
    names = StudyFolders.of(runs / study).runs
    folders = [runs / study / name for name in names if (runs / study / name / "config.yaml").is_file()]
    if not folders:
        hint = nearest_folder(runs / study) if not (runs / study).is_dir() else ""
        raise ConfigError(f"study={study}: there is no run in {runs / study}/{hint}")
    return folders


def upload(
    folder: RunFolder, *, mode: str = "online", project: str | None = None, entity: str | None = None
) -> str:
    """Mirrors one run as ``mode``; ``uploaded``, ``already there``, ``no result yet``, ``never trained`` or
    ``failed``.

    A run that was mirrored is marked in its folder and left alone until its record changes or it is
    asked for in another place. ``project`` and ``entity`` default to those of the run's own settings.
    """
    try:
        result = folder.result()
        about = {} if result is None else derived(result, folder.provenance())
        tree = read_yaml(folder.root / "config.yaml", "restore it")
        own = dict(tree["tracking"])
    except (RunError, OSError, KeyError, TypeError, ValueError) as error:
        sys.stderr.write(f"error: {folder.root}: its record is damaged: {error}\n")
        return "failed"  # the others are uploaded
    if result is None or result.status == RunStatus.PREEMPTED:
        return "no result yet"
    if result.planned is None:
        return "never trained"  # refused: there is nothing to mirror
    tracking = TrackingConfig(
        mode=mode,
        project=project or own["project"],
        entity=entity or own["entity"],
        tags=own["tags"],
        artifacts=own["artifacts"],
    )
    target = {"project": tracking.project or result.study, "entity": tracking.entity}
    mark = folder.root / MARK
    state = {"mode": mode, **target, "record": _hash(folder)}
    if read_mark(mark) == state:
        return "already there"
    tracker = open_tracker(
        tracking,
        RunIdentity.of(result),
        folder.root,
        tree,
        about,
        steps=result.planned.steps,
    )
    for row in folder.rows():
        tracker.log(row)
    tracker.close(result, 0 if result.status == RunStatus.COMPLETE else 1)
    if tracker.failed:
        return "failed"
    write_json(mark, state)
    return "uploaded"


def _hash(folder: RunFolder) -> str:
    paths = (folder.metrics, folder.root / "result.json")
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths if path.exists())).hexdigest()
