"""Evaluation by several processes: each scores a part of the sequences, and all know every score."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from archbench.experiments.objectives.objective import Score

FIELDS = ("accuracy_B", "nats_B", "answers_B", "bytes_B", "cluster_B", "slices_BK")
"""Fields of a score that processes exchange."""


@dataclass(frozen=True, kw_only=True)
class EvaluationShard:
    """The part of an evaluation that a process has."""

    index: int = 0
    of: int = 1
    reports: bool = True
    """False where another process has the same part, and reports it."""
    lockstep: bool = False
    """True where the weights are divided, so that all processes must run the model together."""

    def map_examples(
        self, model: nn.Module, score: Callable[[int, int], list[Score]], start: int, end: int
    ) -> list[Score]:
        """The scores of sequences ``start .. end``; ``score`` computes those of a range.

        Scores are summed over processes, each being 0 in all but one process, so they are exact.
        Records have any type and are not exchanged: every process then scores all sequences.
        """
        if self.of == 1 or start == end:
            return score(start, end)
        if not self.lockstep:
            return self._merged(score, start, end, score(*self._part(start, end)))
        with in_step(model):  # all score one sequence first, to see whether there are records
            first_score = score(start, start + 1)
            divided = not any(s.records for s in first_score)
            local = score(*self._part(start + 1, end)) if divided else score(start + 1, end)
        return [*first_score, *(self._merged(score, start + 1, end, local) if divided else local)]

    def any(self, local: bool) -> bool:
        """Return True if a value is true in any process. All processes call it."""
        return local if self.of == 1 else _in_any(local)

    def _part(self, start: int, end: int) -> tuple[int, int]:
        """Return the range of the sequences ``start .. end`` that this process scores."""
        begin, stop = (start + (end - start) * part // self.of for part in (self.index, self.index + 1))
        return begin, stop

    def _merged(
        self, score: Callable[[int, int], list[Score]], start: int, end: int, local: list[Score]
    ) -> list[Score]:
        """Return the scores of the sequences ``start .. end``, of which this process has its part."""
        begin, stop = self._part(start, end)
        widths = []  # values of each field for a sequence; 0 for none
        for name in FIELDS:
            values = [value for s in local if (value := getattr(s, name)) is not None]
            widths.append(max((value[:1].numel() for value in values), default=0))
        flags = torch.tensor([any(s.records for s in local), *widths]).int()
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        if flags[0]:
            return [*score(start, begin), *local, *score(stop, end)]
        merged = Score()
        for name, width in zip(FIELDS, flags[1:].tolist(), strict=True):
            if width == 0:
                continue
            all_NK = torch.zeros(end - start, width, dtype=torch.float64)
            if self.reports and local:
                all_NK[begin - start : stop - start] = torch.cat(
                    [getattr(s, name).double().cpu().view(-1, width) for s in local]
                )
            dist.all_reduce(all_NK)
            merged = replace(merged, **{name: all_NK[:, 0] if width == 1 else all_NK})  # type: ignore[arg-type]
        return [merged]


ALONE = EvaluationShard()
"""The shard of a single process."""


@contextmanager
def in_step(model: nn.Module) -> Iterator[None]:
    """Allow processes to run the model with different frequency in the block.

    Where the weights of a model are divided among processes, a forward pass gathers them block by block, so
    that all processes must run it together. Processes may have different counts of batches, or of passes for
    one. Before each pass, processes exchange which of them run one. A process that has left the block repeats
    its last pass, which the other processes need, until none makes one.

    All processes must enter it, run the model at least once, and only by calling it.
    """
    last_call: list[tuple[Any, Any]] = []

    def announce(module: nn.Module, args: Any, kwargs: Any) -> None:
        last_call[:] = [(args, kwargs)]
        _in_any(True)

    # Before the hooks that gather weights, so that all processes do both in the same order.
    hook = model.register_forward_pre_hook(announce, prepend=True, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()
    while _in_any(False):
        args, kwargs = last_call[0]
        model(*args, **kwargs)


def _in_any(local: bool) -> bool:
    """Return True if ``local`` is true in any process. All processes must call it."""
    flag = torch.tensor(int(local))
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)
