"""Checkpoints that multiple processes write together, each its shards.

``stage`` copies what a process writes; ``write`` can then run in a thread of each process, while the training
goes on. The threads run the same steps and communicate over a separate process group.
"""

from __future__ import annotations

import shutil
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor, nn

from archbench.experiments.runtime.errors import CheckpointError, RunError
from archbench.experiments.training.checkpoints.checkpoint import (
    SHARDED,
    Entry,
    abandoned,
    begin,
    broken,
    commit,
    conclude,
    describe,
    place,
)
from archbench.experiments.training.checkpoints.stored_state import gather_state
from archbench.experiments.training.parallel.collectives import is_rank_zero, run_on_all, run_on_rank_zero
from archbench.experiments.training.parallel.sharded_files import file_numbers, own_parts, write_parts


@dataclass(frozen=True, kw_only=True)
class Staged:
    """The part of a checkpoint that this process writes."""

    parts: Mapping[str, dict[str, Tensor]]
    """Copies of its parts of the tensors, by kind and name."""
    numbers: Mapping[str, dict[str, int]]
    """Index of the file of a part, by type and name; of all tensors."""


def stage(model: nn.Module, optimizer: torch.optim.Optimizer) -> Staged:
    """Copy this process's part of a checkpoint into CPU memory."""
    tensors = gather_state(model, optimizer)
    return Staged(
        parts={kind: own_parts(tensors_of) for kind, tensors_of in tensors.items()},
        numbers={kind: file_numbers(tensors_of) for kind, tensors_of in tensors.items()},
    )


def write(
    folder: Path,
    step: int,
    staged: Staged,
    state: dict[str, Any],
    keep: int,
    *,
    group: dist.ProcessGroup | None,
    may_write: Callable[[], object],
) -> list[str]:
    """Commit a checkpoint, verify it, and then remove all but the newest ``keep``. All processes call it.

    Args:
        group: over which the processes communicate.
        may_write: called in the first process before the checkpoint gets its name, and may raise RunError.

    Returns:
        Lines about old checkpoints that could not be removed, which do no harm.

    Raises:
        CheckpointError: the checkpoint was not written, in any process; older checkpoints are unchanged.
    """
    final = place(folder, step)

    def make_folder() -> str:
        try:
            return begin(folder, step).name
        except OSError as error:
            raise abandoned(None, final, error) from error

    temporary = folder / run_on_rank_zero(make_folder, group)

    def write_own(kind: str) -> dict[str, Entry]:
        try:
            files = write_parts(temporary / kind, staged.parts[kind], staged.numbers[kind], group)
            return {path.relative_to(temporary).as_posix(): describe(path) for path in files}
        except (OSError, SafetensorError) as error:
            raise abandoned(None, final, error) from error

    def commit_all(files: dict[str, Entry]) -> None:
        may_write()
        if unseen := [name for name in files if not (temporary / name).exists()]:
            raise CheckpointError(
                f"{final}: {unseen[0]}, which another process has written, is not there: all processes of a "
                "run must see one folder, on a disk that their machines share"
            )
        try:
            commit(temporary, final, {"format": SHARDED, "step": step, **state}, files)
        except OSError as error:
            raise abandoned(None, final, error) from error

    try:
        # One after the other: what fails in one process must not leave it out of step with the others.
        written = [run_on_all(partial(write_own, kind), group) for kind in staged.parts]
        by_rank = [dict(ChainMap(*files)) for files in zip(*written, strict=True)]
        run_on_rank_zero(lambda: commit_all(dict(ChainMap(*by_rank))), group)
    except RunError:
        if is_rank_zero():
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    reasons = run_on_all(lambda: _misread(final, by_rank[dist.get_rank()]), group)
    notes: list[str] = []

    def finish() -> list[str]:
        conclude(final, next(filter(None, reasons), None), keep, notes.append)
        return notes

    return run_on_rank_zero(finish, group)


def _misread(final: Path, own: dict[str, Entry]) -> str | None:
    """Return what of this process's files is not as it was written; the first looks at all, in length."""
    try:
        for name, entry in own.items():
            if describe(final / name) != entry:
                return f"{name} has changed since it was written"
    except OSError as error:
        return f"a file cannot be read ({error})"
    return broken(final, hashes=False) if is_rank_zero() else None
