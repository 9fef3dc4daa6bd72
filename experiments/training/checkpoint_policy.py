"""Saving of checkpoints: retries, failures that a run survives, and the disk space it needs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.runtime.errors import CheckpointError
from experiments.training import checkpoint
from experiments.training.parallel.collectives import is_rank_zero, run_on_rank_zero, world_size
from experiments.training.state_dict import divided_state, gather_state, unique_tensors

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
        failed = self._try(step, model, optimizer, state)
        if failed:
            run_on_rank_zero(lambda: checkpoint.free_space(self.folder, min(self.keep, 2)))
            failed = self._try(step, model, optimizer, state)
        run_on_rank_zero(lambda: self._count(failed, last))

    def _try(
        self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]
    ) -> str | None:
        """Write the checkpoint, in the process of rank 0; return, in all, why it could not be written.

        Several processes gather its tensors one at a time, so that none holds more than one whole tensor.
        They go on to the last where the first cannot write, and fail together.
        """
        divided = divided_state(model, optimizer) if world_size() > 1 else {}
        tensors = divided or gather_state(model, optimizer)
        failure: Exception | None = None
        if is_rank_zero():
            try:
                checkpoint.write(self.folder, step, tensors, state, self.keep, self.log)
            except Exception as error:
                failure = error
        for file in divided.values():
            file.finish()

        def judge() -> str | None:
            if failure is None or isinstance(failure, CheckpointError):
                return None if failure is None else str(failure)
            raise failure

        return run_on_rank_zero(judge)

    def _count(self, failed: str | None, last: bool) -> None:
        """Count saves that fail in a row; the last one raises, and so does the third."""
        if failed is None:
            self.failures = 0
            return
        self.failures += 1
        if last or self.failures >= MOST_FAILURES:
            times = f" ({self.failures} times in a row)" if self.failures > 1 else ""
            raise CheckpointError(
                f"{failed}{times}; older checkpoints are intact: make room and run it again"
            )
        self.log(f"warning: {failed}; training goes on ({self.failures} of {MOST_FAILURES} in a row)")


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
