"""Checks what has changed between the sessions of a run: rejected, or reported and recorded in the result.

Settings that decide the result are part of the folder's name, so that a changed one begins another run.
What can still change under the same name is looked at here: the stored configuration, the data, the code,
libraries and machine.
"""

from __future__ import annotations

import hashlib
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from archbench.experiments.config.digest import result_settings
from archbench.experiments.run.model_files import PARENT, foreign, model_checkpoint
from archbench.experiments.run.settings import Initial, Settings
from archbench.experiments.runtime.atomic_io import write_json
from archbench.experiments.runtime.errors import CheckpointError, ConfigError, DataError
from archbench.experiments.runtime.json_state import read_model
from archbench.experiments.runtime.secrets import redact
from archbench.experiments.runtime.yaml_state import read_yaml
from archbench.experiments.tracking.run_files import ParentRun, Provenance, Resume
from archbench.experiments.tracking.run_folder import DAMAGED_PROVENANCE, RunFolder
from archbench.experiments.training.checkpoints import checkpoint

_ABSENT = "nothing"


def check_config(settings: Settings, folder: Path) -> None:
    """Refuse a run folder with another configuration. Raises ConfigError that names the settings."""
    path = folder / "config.yaml"
    if not path.is_file():
        return
    remedy = "remove the run's folder to begin again"
    stored, unused = read_yaml(path, remedy), settings.backbone.unused_sections
    try:
        before = flat(_compared(stored, unused))
    except Exception as error:  # of sections that are none
        raise ConfigError(f"{path}: cannot be read ({error}): {remedy}") from error
    now = flat(redact(_compared(settings.resolved, unused)))
    different = [
        f"{key}: {before.get(key, _ABSENT)} there, {now.get(key, _ABSENT)} now"
        for key in sorted(before.keys() | now.keys())
        if before.get(key, _ABSENT) != now.get(key, _ABSENT)
    ]
    if different:
        raise ConfigError(
            f"{folder}: this run has another configuration ({'; '.join(different)}): restore its "
            f"config.yaml, remove the folder, or continue its training in a run of its own with "
            f"continue_from={folder}"
        )


def _compared(resolved: dict[str, Any], unused: set[str]) -> dict[str, Any]:
    """Return the settings that decide the result, and those that name the run in the path of its folder."""
    names = {group: resolved["names"][group] for group in ("backbone", "task", "scale")}
    return {**result_settings(resolved, unused), "names": names, "seed": resolved["seed"]}


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a tree by dotted key."""
    if not isinstance(tree, dict):
        return {prefix[:-1]: tree}
    return {
        name: leaf for key, value in tree.items() for name, leaf in flat(value, f"{prefix}{key}.").items()
    }


def compare_provenance(folder: Path, now: Provenance, log: Callable[[str], object]) -> Resume:
    """Compare the provenance of a session that resumes a run with those before it.

    Args:
        folder: the run folder, as the previous session left it.
        now: the provenance of this one.
        log: receives one line with what has changed.

    Raises:
        DataError: the data is not what training began with.
        CheckpointError: provenance.json is lost or damaged, so that nobody can tell.
    """
    # A run with no checkpoint but the copy of its parent's has not been trained.
    parent = read_model(folder / PARENT, ParentRun)
    if checkpoint.newest_step(folder / "checkpoints") <= (0 if parent is None else parent.step):
        return Resume(sittings=1, exact=True, changed={})
    before = RunFolder(folder).provenance()
    if before is None:
        raise CheckpointError(
            f"{folder / 'provenance.json'}: is missing, so that nobody can tell whether the data is what "
            f"the run began with: {DAMAGED_PROVENANCE}"
        )
    RunFolder(folder).check_key(before.key)
    if before.data != now.data:
        raise DataError(
            f"{folder}: the data has changed since this run began: fingerprint "
            f"{before.data.fingerprint} then, {now.data.fingerprint} now: restore the "
            f"data, remove the folder, or continue on the new data in a run of its own with "
            f"continue_from={folder}"
        )
    earlier = before.resume
    flat_then, flat_now = _watched(before), _watched(now)
    if damage := _damaged_metrics(folder):
        flat_then["metrics.jsonl"], flat_now["metrics.jsonl"] = damage
    changed = {
        key: [flat_then.get(key), flat_now.get(key)]
        for key in sorted(flat_then.keys() | flat_now.keys())
        if flat_then.get(key) != flat_now.get(key)
    }
    if changed:
        changes = "; ".join(f"{key} {old} -> {new}" for key, (old, new) in changed.items())
        log(f"warning: changed since the run was last here: {changes}; its result is marked as not exact")
    # The oldest value stays the one compared with: what changed and changed back did so for a while.
    changed = {key: [earlier.changed.get(key, pair)[0], pair[1]] for key, pair in changed.items()}
    changed = {**earlier.changed, **changed}
    return Resume(sittings=earlier.sittings + 1, exact=not changed, changed=changed)


def _damaged_metrics(folder: Path) -> tuple[str, str] | None:
    """Return what metrics.jsonl was at the newest checkpoint, and is now; None if these are equal.

    Later rows are written again.
    """
    state = checkpoint.newest_state(folder / "checkpoints")
    if state is None:
        return None
    record = state["metrics"]
    path = folder / "metrics.jsonl"
    data = path.read_bytes() if path.exists() else b""
    saved = data[: record["bytes"]]
    if hashlib.sha256(saved).hexdigest() == record["sha256"]:
        return None
    there = saved.count(b"\n")
    return f"{record['rows']} rows", f"{there} rows" if there != record["rows"] else "other rows"


def _watched(provenance: Provenance) -> dict[str, str | int]:
    """Return the part of a provenance that may change the last bits of a result."""
    parts = provenance.model_dump(include={"versions", "device", "kernels"})
    return flat(parts | {"code": provenance.git.code})


def check_checkpoints(folder: Path) -> None:
    """Reject checkpoints that another run saved, and a run with lost checkpoints. Raises CheckpointError."""
    if (step := checkpoint.lost_step(folder / "checkpoints")) is not None:
        raise CheckpointError(
            f"{folder / 'checkpoints'}: step {step} was saved, and no checkpoint is left: restore it, or "
            "remove the run's folder to train it from the beginning"
        )
    for path in checkpoint.committed(folder / "checkpoints"):
        if reason := foreign(path, RunFolder(folder).key):
            raise CheckpointError(f"{path}: {reason}: remove it")


def copy_parent_checkpoint(parent: Initial, folder: Path) -> None:
    """Copy the last checkpoint of the parent, or the one named, into a run without one.

    Raises CheckpointError where the parent has no whole checkpoint.
    """
    checkpoints = folder / "checkpoints"
    if not any(checkpoints.glob("step-*")):
        copied = model_checkpoint(parent.path)
        step = checkpoint.step_of(copied)
        temporary = checkpoints / f".tmp-{uuid.uuid4().hex[:8]}"
        shutil.copytree(copied, temporary)
        copy = ParentRun(path=str(parent.path), fingerprint=parent.fingerprint, step=step)
        write_json(folder / PARENT, copy.tree())
        temporary.rename(checkpoints / copied.name)
