"""Saving of checkpoints: retries, failures that a run survives, and the disk space it needs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.runtime.errors import CheckpointError
from experiments.training import checkpoint
from experiments.training.parallel.collectives import run_on_rank_zero
from experiments.training.state_dict import gather_state, unique_tensors

MOST_FAILURES = 3
"""Saves in a row that may fail before a run gives up."""


class CheckpointSaver:
    """Saves the checkpoints of a run. A failure is logged, and only three in a row end the run."""

    def __init__(self, folder: Path, keep: int, log: Callable[[str], object]) -> None:
        self.folder, self.keep, self.log = folder, keep, log
        self.failures = 0

    def save(
        self,
        step: int,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        state: dict[str, Any],
        *,
        last: bool = False,
    ) -> None:
        """Save a checkpoint; on failure, free disk space and try once more. All processes must call it.

        Args:
            last: nothing is trained after it, so that a failure ends the run.

        Raises:
            CheckpointError: the last save has failed, or the third in a row. Older checkpoints are intact.
        """
        tensors = gather_state(model, optimizer)
        run_on_rank_zero(lambda: self._write(step, tensors, state, last))

    def _write(
        self, step: int, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any], last: bool
    ) -> None:
        """Write the checkpoint, in the process of rank 0."""
        arguments = (self.folder, step, tensors, state, self.keep, self.log)
        try:
            checkpoint.write(*arguments)
        except CheckpointError:
            checkpoint.free_space(self.folder, min(self.keep, 2))
            try:
                checkpoint.write(*arguments)
            except CheckpointError as error:
                self.failures += 1
                if last or self.failures >= MOST_FAILURES:
                    times = f" ({self.failures} times in a row)" if self.failures > 1 else ""
                    raise CheckpointError(
                        f"{error}{times}; older checkpoints are intact: make room and run it again"
                    ) from error
                self.log(f"warning: {error}; training goes on ({self.failures} of {MOST_FAILURES} in a row)")
                return
        self.failures = 0


def checkpoint_bytes(model: nn.Module, averages: bool) -> int:
    """Return the bytes of a checkpoint: weights, buffers, two moments of each weight, and its EMA."""
    tensors = unique_tensors(model).values()
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return sum(t.numel() * t.element_size() for t in tensors) + (3 if averages else 2) * weights


def check_room(folder: Path, model: nn.Module, keep: int, averages: bool) -> None:
    """Refuses to train where the disk will not hold the checkpoints: all that are kept, and the next.

    Those that are there already count. A quota may be tighter than what the disk says.
    All processes must call it, and the first looks. Raises CheckpointError.
    """
    size = checkpoint_bytes(model, averages)
    run_on_rank_zero(lambda: _check_room(folder, size, keep))


def _check_room(folder: Path, size: int, keep: int) -> None:
    there = min(keep, len(list(folder.glob("checkpoints/step-*"))))
    needed = (keep + 1 - there) * size
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointError(
            f"{folder}: {free / 2**20:,.0f} MiB are free, and {keep + 1 - there} checkpoints of "
            f"{size / 2**20:,.1f} MiB need {needed / 2**20:,.0f}: make room, choose another disk with runs=, "
            "or lower trainer.keep_checkpoints"
        )
