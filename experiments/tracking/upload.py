"""Upload runs that have ended to W&B, from their run folders."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from archbench.experiments.config.schema import TrackingConfig
from archbench.experiments.runtime.atomic_io import write_json
from archbench.experiments.runtime.errors import ConfigError, RunError, nearest_folder
from archbench.experiments.runtime.json_state import read_mark
from archbench.experiments.runtime.run_status import RunStatus
from archbench.experiments.runtime.yaml_state import read_yaml
from archbench.experiments.tracking.run_folder import RunFolder, StudyFolders
from archbench.experiments.tracking.tracker import RunIdentity, derived, open_tracker

MARK = "wandb-uploaded.json"


def study_folders(runs: Path, study: str) -> list[Path]:
    """Return the run folders of a study that have a configuration. Raises ConfigError if it is missing."""
    folders = [runs / study / name for name in StudyFolders.of(runs / study).runs]
    folders = [folder for folder in folders if (folder / "config.yaml").is_file()]
    if not folders:
        hint = nearest_folder(runs / study) if not (runs / study).is_dir() else ""
        raise ConfigError(f"study={study}: there is no run in {runs / study}/{hint}")
    return folders


def upload(
    folder: RunFolder, *, mode: str = "online", project: str | None = None, entity: str | None = None
) -> str:
    """Upload one run, and return ``uploaded``, ``already there``, ``no result yet``, ``never trained`` or
    ``failed``.

    A file in the run folder marks a run that was uploaded. It is uploaded again only if its files have
    changed, or to another project or entity. ``project`` and ``entity`` default to the settings of the run.
    """
    try:
        result = folder.result()
        values = {} if result is None else derived(result, folder.provenance())
        tree = read_yaml(folder.root / "config.yaml", "restore it")
        settings = dict(tree["tracking"])
    except (RunError, OSError, KeyError, TypeError, ValueError) as error:
        sys.stderr.write(f"error: {folder.root}: its record is damaged: {error}\n")
        return "failed"  # the other runs are uploaded
    if result is None or result.status == RunStatus.PREEMPTED:
        return "no result yet"
    if result.planned is None:
        return "never trained"  # rejected before training
    tracking = TrackingConfig(
        mode=mode,
        project=project or settings["project"],
        entity=entity or settings["entity"],
        tags=settings["tags"],
        artifacts=settings["artifacts"],
    )
    target = {"project": tracking.project or result.study, "entity": tracking.entity}
    mark = folder.root / MARK
    files = (folder.metrics, folder.root / "result.json")
    content = b"".join(path.read_bytes() for path in files if path.exists())
    state = {"mode": mode, **target, "record": hashlib.sha256(content).hexdigest()}
    if read_mark(mark) == state:
        return "already there"
    identity, steps = RunIdentity.of(result), result.planned.steps
    tracker = open_tracker(tracking, identity, folder.root, tree, values, steps=steps)
    for row in folder.rows():
        tracker.log(row)
    tracker.close(result, 0 if result.status == RunStatus.COMPLETE else 1)
    if tracker.failed:
        return "failed"
    write_json(mark, state)
    return "uploaded"
