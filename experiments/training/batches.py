"""Training batches, made for multiple steps at once.

The cost of a small batch is mostly a fixed number of calls, so a block of many steps costs hardly more.
"""

from __future__ import annotations

from experiments.tasks.task import Batch, Task

BLOCK_TOKENS = 2**18
"""Tokens of a block at most; where a step has more than half of that, a block is a step."""
BLOCK_STEPS = 16


class BatchPrefetcher:
    """Makes the batches of a run for multiple steps at once; they equal those made one by one."""

    def __init__(
        self, task: Task, seed: int, batch_size: int, total_steps: int, *, part: int = 0, parts: int = 1
    ) -> None:
        """Return only part ``part`` of ``parts`` equal parts of each batch."""
        self._task, self._seed, self._batch_size, self._total = task, seed, batch_size, total_steps
        self._rows = batch_size // parts
        self._begin = part * self._rows
        fitting = BLOCK_TOKENS // (batch_size * task.sequence_length)
        self._steps = min(BLOCK_STEPS, max(1, fitting))
        self._first = 0
        self._block: Batch | None = None

    def batch(self, step: int) -> Batch:
        """Return this part of the batch of a step, counted from 0."""
        size = self._batch_size
        if self._steps == 1:  # a large batch: only this part is made
            return self._task.batch("train", self._seed, step * size + self._begin, self._rows)
        if self._block is None or not 0 <= step - self._first < self._steps:
            self._first = step
            count = min(self._steps, self._total - step) * size
            self._block = self._task.batch("train", self._seed, step * size, count)
        begin = (step - self._first) * size + self._begin
        return self._block.rows(begin, begin + self._rows)
