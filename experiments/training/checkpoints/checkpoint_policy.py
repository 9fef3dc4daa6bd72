"""Saving of checkpoints: retries, failures that a run survives, and the disk space it needs."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from archbench.experiments.runtime.errors import CheckpointError
from archbench.experiments.training.checkpoints import checkpoint
from archbench.experiments.training.checkpoints.stored_state import gather_state, unique_tensors
from archbench.experiments.training.parallel.collectives import (
    all_reduce_any,
    background_group,
    run_on_rank_zero,
    world_size,
)

MOST_FAILURES = 3
"""Saves in a row that may fail before a run gives up."""
PATIENCE = 60.0
"""Seconds that a run which fails waits for the save that it has begun."""

Outcome = tuple[str | None, list[str]]
"""Why a checkpoint could not be written, None if it was; and lines for the log."""


class CheckpointSaver:
    """Saves the checkpoints of a run. A failure is logged, and only three in a row end the run.

    One process writes them at once. Several copy what each writes, and write it while they train on.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        log: Callable[[str], object],
        may_write: Callable[[], object] = lambda: None,
    ) -> None:
        """Prepare to save; all processes must do so at the same point of the program.

        Args:
            may_write: called on rank 0 before a save is repeated, and of multiple processes before a
                checkpoint gets its name; an exception it raises ends the run.
        """
        self.folder, self.keep, self.log, self.may_write = folder, keep, log, may_write
        self.failures = 0
        self._group = background_group()
        self._begun: _Background | None = None
        self._last = False

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

        With multiple processes, it returns when all tensors are copied. ``poll``, ``wait`` and the next save,
        which waits for this one, report its outcome.

        Args:
            last: whether training is complete, so that a failure ends the run.

        Raises:
            CheckpointError: the last save has failed, or the third in a row.
        """
        self.wait()
        self._last = last
        if world_size() == 1:
            tensors = gather_state(model, optimizer)
            write = partial(checkpoint.write, self.folder, step, tensors, state, self.keep, self.log)
            self._end(self._write(write))
            return
        from archbench.experiments.training.checkpoints import sharded_checkpoint

        staged = sharded_checkpoint.stage(model, optimizer)
        write_shards = partial(sharded_checkpoint.write, group=self._group, may_write=self.may_write)
        self._begun = _Background(
            partial(self._write, partial(write_shards, self.folder, step, staged, state, self.keep))
        )

    def poll(self) -> None:
        """Look whether the save that was begun has ended in all processes. Raises as ``save`` does."""
        if self._begun is not None and not all_reduce_any(not self._begun.done):
            self.wait()

    def wait(self) -> None:
        """Wait for the save that was begun, if there is one. Raises as ``save`` does."""
        begun, self._begun = self._begun, None
        if begun is not None:
            self._end(begun.outcome())

    def __enter__(self) -> CheckpointSaver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let a save that was begun end, as far as it can, where training fails for another reason."""
        begun, self._begun = (self._begun, None) if error is not None else (None, self._begun)
        if begun is not None and (failed := begun.failed(PATIENCE)) is not None:
            self.log(f"warning: {failed}")

    def _write(self, write: Callable[[], list[str] | None]) -> Outcome:
        try:
            return None, write() or []
        except CheckpointError:
            run_on_rank_zero(self.may_write, self._group)  # another process may write the run by now
            run_on_rank_zero(lambda: checkpoint.free_space(self.folder, min(self.keep, 2)), self._group)
        try:
            return None, write() or []
        except CheckpointError as error:
            return str(error), []

    def _end(self, outcome: Outcome) -> None:
        failed, notes = outcome
        for line in notes:
            self.log(line)
        run_on_rank_zero(lambda: self._count(failed, self._last))

    def _count(self, failed: str | None, is_last: bool) -> None:
        """Count consecutive failures; the third one raises, and so does that of the last save."""
        if failed is None:
            self.failures = 0
            return
        self.failures += 1
        if is_last or self.failures >= MOST_FAILURES:
            times = f" ({self.failures} times in a row)" if self.failures > 1 else ""
            older = "older checkpoints are intact: make room and run it again"
            if not checkpoint.committed(self.folder):
                older = f"{self.folder} has no older one: make room, or put the folder back, and run it again"
            raise CheckpointError(f"{failed}{times}; {older}")
        self.log(f"warning: {failed}; training goes on ({self.failures} of {MOST_FAILURES} in a row)")


class _Background(threading.Thread):
    """A save in a daemon thread, which does not delay the end of the process."""

    def __init__(self, work: Callable[[], Outcome]) -> None:
        super().__init__(name="checkpoint", daemon=True)
        self._work = work
        self._outcome: Outcome | None = None
        self._failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._outcome = self._work()
        except BaseException as failure:  # it is raised where the run waits for it
            self._failure = failure
        del self._work  # and with it what was copied

    @property
    def done(self) -> bool:
        """True once the save has ended in this process."""
        return not self.is_alive()

    def outcome(self) -> Outcome:
        """Wait for the save and return how it ended. Raises what ended it unexpectedly."""
        self.join()
        if self._failure is not None:
            raise self._failure
        assert self._outcome is not None
        return self._outcome

    def failed(self, seconds: float) -> str | None:
        """Wait so long for the save; return why it has failed, or None."""
        self.join(seconds)
        return None if self._outcome is None else self._outcome[0]


def checkpoint_bytes(model: nn.Module, averages: bool) -> int:
    """Return the bytes of a checkpoint: weights, buffers, two moments of each weight, and its EMA."""
    tensors = unique_tensors(model).values()
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return sum(t.numel() * t.element_size() for t in tensors) + (3 if averages else 2) * weights


def check_room(folder: Path, model: nn.Module, keep: int, averages: bool) -> None:
    """Raise CheckpointError if the disk is too small for the checkpoints: all that are kept, and the next.

    Existing checkpoints count. A quota may be tighter than the free space of the disk.
    All processes must call it; only rank 0 looks at the disk.
    """
    size = checkpoint_bytes(model, averages)

    def look() -> None:
        existing = min(keep, len(list(folder.glob("checkpoints/step-*"))))
        needed = (keep + 1 - existing) * size
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise CheckpointError(
                f"{folder}: {free / 2**20:,.0f} MiB are free, and {keep + 1 - existing} checkpoints of "
                f"{size / 2**20:,.1f} MiB need {needed / 2**20:,.0f}: make room, choose another disk with "
                "runs=, or lower trainer.keep_checkpoints"
            )

    run_on_rank_zero(look)
