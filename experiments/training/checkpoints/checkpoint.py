"""Atomic checkpoints: safetensors and JSON, never pickle.

A checkpoint is written into a hidden folder, each file synced and its hash
listed in MANIFEST.json, then renamed. Loading takes the newest one whose files
match their hashes; a broken one is renamed to ``broken-*``, with
the reason inside. A new one is verified before an old one is removed, and an
old one loses its manifest first, so that a partial checkpoint never looks complete.

Format 1 holds full tensors, written by one process (``write``). Format 2 holds
shards, written by multiple processes (``sharded_checkpoint``). Any number of processes reads either.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from typing_extensions import TypedDict

from archbench.experiments.runtime.atomic_io import share, sync, write_json
from archbench.experiments.runtime.errors import CheckpointError
from archbench.experiments.runtime.json_state import read_json
from archbench.experiments.training.checkpoints.stored_state import in_shards, restore
from archbench.experiments.training.parallel.collectives import rank, run_on_all, run_on_rank_zero, world_size

WHOLE, SHARDED = 1, 2
"""Formats, as ``state.json`` names them."""
FILES = ("model.safetensors", "optimizer.safetensors", "state.json")
"""Files of a checkpoint of full tensors."""

SAVED = "saved.json"
"""File next to the folder of checkpoints with the step that was saved last. It tells a run that lost its
checkpoints from one that stopped before its first."""
BEGIN_AGAIN = "remove the run's folder to train it from the beginning"

Entry = dict[str, int | str]
"""Length and hash of a file, in the manifest."""


class SavedRecord(TypedDict):
    """Content of ``saved.json``."""

    step: int


def write(
    folder: Path,
    step: int,
    tensors: Mapping[str, dict[str, Tensor]],
    state: dict[str, Any],
    keep: int,
    log: Callable[[str], object] = print,
) -> None:
    """Commit a checkpoint, verify it, and then remove all but the newest ``keep``.

    Args:
        tensors: by kind and name, as ``stored_state.gather_state`` returns them.
        state: everything else that is needed to continue; it must be representable in JSON.
        keep: number of checkpoints left, the new one included.
        log: receives a line about old checkpoints that could not be removed, which do no harm.

    Raises:
        CheckpointError: the checkpoint was not written; older checkpoints are unchanged.
    """
    final = place(folder, step)
    temporary: Path | None = None
    try:
        temporary = begin(folder, step)
        for kind, content in tensors.items():
            contiguous = {name: tensor.detach().contiguous() for name, tensor in content.items()}
            save_file(contiguous, temporary / f"{kind}.safetensors")
            share(temporary / f"{kind}.safetensors")
        files = {path.name: describe(path) for path in temporary.iterdir()}
        commit(temporary, final, {"format": WHOLE, "step": step, **state}, files)
        reason = broken(final)
    except (OSError, SafetensorError) as error:
        raise abandoned(temporary, final, error) from error
    conclude(final, reason, keep, log)


def place(folder: Path, step: int) -> Path:
    """Return where the checkpoint of a step is, once it is committed."""
    return folder / f"step-{step:08d}"


def begin(folder: Path, step: int) -> Path:
    """Make the hidden folder that a checkpoint is written into. Raises OSError."""
    folder.mkdir(exist_ok=True)  # and not the run's folder: it is gone where someone removed or renamed it
    for leftover in folder.glob(".tmp-*"):
        shutil.rmtree(leftover)
    temporary = folder / f".tmp-{step:08d}-{uuid.uuid4().hex[:8]}"
    temporary.mkdir()
    return temporary


def describe(path: Path) -> Entry:
    """Return the manifest entry of a file. Raises OSError."""
    return {"bytes": path.stat().st_size, "sha256": _hash(path)}


def commit(temporary: Path, final: Path, state: dict[str, Any], files: Mapping[str, Entry]) -> None:
    """Give a checkpoint its state and its manifest, and then its name. Raises OSError."""
    replaced = final.with_name(f"broken-{final.name}-replaced")
    (temporary / "state.json").write_text(json.dumps(state))
    entries = {**files, "state.json": describe(temporary / "state.json")}
    (temporary / "MANIFEST.json").write_text(json.dumps(entries, indent=1))
    for path in [*temporary.rglob("*"), temporary]:
        sync(path)
    if final.exists():
        final.rename(replaced)
    temporary.rename(final)
    sync(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def abandoned(temporary: Path | None, final: Path, error: Exception) -> CheckpointError:
    """Remove the partial checkpoint, and return the error with the reason."""
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)
    return CheckpointError(f"{final}: the checkpoint cannot be written: {error}")


def conclude(final: Path, reason: str | None, keep: int, log: Callable[[str], object]) -> None:
    """Note the step of the new checkpoint and remove older ones, if it is complete.

    Raises CheckpointError for ``reason``.
    """
    if reason is not None:
        set_aside(final, reason)
        raise CheckpointError(f"{final}: what was written cannot be read back: {reason}")
    with contextlib.suppress(OSError):  # the checkpoint is complete without it
        write_json(final.parents[1] / SAVED, {"step": step_of(final)})
    try:
        prune(final.parent, keep)
    except OSError as error:
        log(f"warning: {final.parent}: an old checkpoint cannot be removed: {error}")


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest ``keep`` checkpoints. Raises OSError.

    Only checkpoints with files of full length count. Folders left by a crash during pruning
    are removed, and damaged checkpoints are set aside.
    """
    complete = []
    for path in committed(folder):
        if not (path / "MANIFEST.json").exists():
            shutil.rmtree(path)
        elif reason := broken(path, hashes=False):
            set_aside(path, reason)
        else:
            complete.append(path)
    for old in complete[keep:]:
        (old / "MANIFEST.json").unlink()
        shutil.rmtree(old)


def free_space(folder: Path, keep: int) -> None:
    """Remove leftovers, broken checkpoints, and all but the newest ``keep``."""
    for path in folder.glob("broken-*"):
        shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        for leftover in folder.glob(".tmp-*"):
            shutil.rmtree(leftover)
        prune(folder, keep)


def saved_step(run: Path, remedy: str) -> int | None:
    """Return the step that a run saved last; None where it saved none. Raises CheckpointError if damaged."""
    record = read_json(run / SAVED, SavedRecord, remedy)
    return None if record is None else record["step"]


def note_saved(folder: Path) -> bool:
    """Write ``saved.json`` again if it has not the step of the newest checkpoint. Return True if it had not.

    Raises OSError.
    """
    step = newest_step(folder)
    with contextlib.suppress(CheckpointError):  # it is damaged
        if not step or step == saved_step(folder.parent, ""):
            return False
    write_json(folder.parent / SAVED, {"step": step})
    return True


def lost_step(folder: Path) -> int | None:
    """Return the step that was saved last, if no checkpoint is left, not even a damaged one; else None.

    Raises CheckpointError if the file with this step is damaged.
    """
    return None if any(folder.glob("*step-*")) else saved_step(folder.parent, BEGIN_AGAIN)


def set_aside(path: Path, reason: str) -> None:
    """Rename a broken checkpoint and write the reason into it."""
    aside = path.with_name(f"broken-{path.name}-{uuid.uuid4().hex[:4]}")
    path.rename(aside)
    with contextlib.suppress(OSError):
        (aside / "REASON.txt").write_text(reason + "\n")


def load_newest(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    log: Callable[[str], object] = print,
) -> dict[str, Any] | None:
    """Restore the newest complete checkpoint and return its state; None if there has never been one.

    ``log`` receives a line if a newer one is broken. All processes must call it. Each checks the sizes of
    all files and the hashes of its share; if one finds a checkpoint broken, it is set aside for all.

    Raises:
        CheckpointError: there are checkpoints, and every one is broken, or the newest comes from
            another version. Starting over in silence would hide the loss.
    """
    reasons: list[str] = []
    while (name := run_on_rank_zero(lambda: _newest_name(folder, reasons))) is not None:
        path = folder / name
        problems = run_on_all(partial(broken, path, share=(rank(), world_size())))
        reason = next(filter(None, problems), None)
        if reason is None:
            run_on_rank_zero(partial(check_format, path))
            if reasons:
                log(f"warning: {folder}: fell back to {name}; set aside {'; '.join(reasons)}")
            restore(path, model, optimizer)
            return dict(json.loads((path / "state.json").read_text()))
        reasons.append(f"{name}: {reason}")
        run_on_rank_zero(partial(set_aside, path, reason))
    return None


def damaged_steps(folder: Path) -> dict[int, str]:
    """Return the steps of damaged checkpoints that were set aside, each with the reason."""
    names = ((path, re.match(r"broken-step-(\d+)-", path.name)) for path in sorted(folder.glob("broken-*")))
    return {int(name[1]): _reason(path) for path, name in names if name}


def _newest_name(folder: Path, reasons: list[str]) -> str | None:
    """The name of the newest checkpoint, of those that were not set aside; None if there has been none."""
    if not folder.exists():
        return None
    if checkpoints := committed(folder):
        return checkpoints[0].name
    earlier = [f"{path.name}: {_reason(path)}" for path in sorted(folder.glob("broken-*"))]
    if earlier:
        raise CheckpointError(
            f"{folder}: no checkpoint is whole ({'; '.join(reasons or earlier)}). "
            "Remove the run's folder to train it from the beginning."
        )
    return None


def newest_state(folder: Path) -> dict[str, Any] | None:
    """The state stored in the newest checkpoint with an undamaged state file, or None."""
    return next(filter(None, map(stored_state, committed(folder))), None)


def stored_state(path: Path) -> dict[str, Any] | None:
    """Return the state stored in a checkpoint; None if it is damaged."""
    try:
        expected = json.loads((path / "MANIFEST.json").read_text())["state.json"]["sha256"]
        if _hash(path / "state.json") == expected:
            return dict(json.loads((path / "state.json").read_text()))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint that was committed; 0 if it is missing."""
    return max((step_of(path) for path in committed(folder)), default=0)


def committed(folder: Path) -> list[Path]:
    """Checkpoints, newest first. Folders with other names than that of ``place`` are ignored."""
    folders = [path for path in folder.glob("step-*") if path.name[5:].isdecimal()]
    return sorted(
        (path for path in folders if place(folder, step_of(path)) == path), key=step_of, reverse=True
    )


def step_of(path: Path) -> int:
    """Return the step of a checkpoint, by its name."""
    return int(path.name.removeprefix("step-"))


def broken(path: Path, *, hashes: bool = True, share: tuple[int, int] = (0, 1)) -> str | None:
    """Return why a checkpoint cannot be trusted; None if every file matches the manifest.

    Args:
        hashes: read all files, and not only their lengths.
        share: index, counted from 0, and number of the shares of files to hash.
    """
    part, parts = share
    try:
        manifest = json.loads((path / "MANIFEST.json").read_text())
        unknown = {file.relative_to(path).as_posix() for file in path.rglob("*.safetensors")} - set(manifest)
        if unknown:
            return f"{min(unknown)} is not in the manifest"
        names = dict.fromkeys([*manifest, "state.json"]) if in_shards(path) else FILES
        for index, name in enumerate(names):
            file, expected = path / name, manifest[name]
            if not file.exists():
                return f"{name} is missing"
            if file.stat().st_size != expected["bytes"]:
                return f"{name} has {file.stat().st_size} bytes instead of {expected['bytes']}"
            if hashes and index % parts == part and _hash(file) != expected["sha256"]:
                return f"{name} has changed since it was written"
        step = json.loads((path / "state.json").read_text())["step"]
        if path.name != place(path.parent, step).name:
            return f"it holds step {step}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return f"the manifest cannot be read ({error})"
    return None


def check_format(path: Path) -> None:
    """Raise CheckpointError for an intact checkpoint of another version."""
    format_ = json.loads((path / "state.json").read_text()).get("format")
    if format_ not in (WHOLE, SHARDED):
        raise CheckpointError(
            f"{path}: it is in format {format_}, this version reads {WHOLE} and {SHARDED}: continue with the "
            "version that wrote it (provenance.json in the run's folder names its commit)"
        )


def _reason(path: Path) -> str:
    try:
        return (path / "REASON.txt").read_text().strip()
    except OSError:
        return "broken"


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
