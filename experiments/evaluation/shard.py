"""An evaluation divided among processes: each scores some sequences, all know the scores of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from experiments.objectives.objective import Score

FIELDS = ("accuracy_B", "nats_B", "bytes_B")


@dataclass(frozen=True, kw_only=True)
class Share:
    """The part of an evaluation that a process has."""

    index: int = 0
    of: int = 1
    reports: bool = True
    """False where another process has the same part, and reports it."""

    def divide(self, score: Callable[[int, int], list[Score]], total: int) -> list[Score]:
        """The scores of ``total`` sequences; ``score`` finds those of a range of them.

        Numbers are added up among the processes, each being 0 everywhere but in one, so they are exact.
        Records can be anything and are not sent: every process then scores all sequences.
        """
        if self.of == 1:
            return score(0, total)
        first, end = (total * part // self.of for part in (self.index, self.index + 1))
        own = score(first, end)
        has = torch.tensor(
            [any(s.records for s in own), *(any(getattr(s, f) is not None for s in own) for f in FIELDS)]
        ).int()
        dist.all_reduce(has, dist.ReduceOp.MAX)
        if has[0]:
            return [*score(0, first), *own, *score(end, total)]
        found: dict[str, Any] = {}
        for name in (name for name, there in zip(FIELDS, has[1:].tolist(), strict=True) if there):
            all_N = torch.zeros(total, dtype=torch.float64)
            if self.reports and own:
                all_N[first:end] = torch.cat([getattr(s, name).double().cpu() for s in own])
            dist.all_reduce(all_N)
            found[name] = all_N
        return [Score(**found)]


ALL = Share()
"""What a process has that is alone."""
