"""A run before it is trained: where it will be, and how long it takes relative to others."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archbench.experiments.run.settings import Settings

STEP_FLOPS = 1.5e8
"""FLOPs that a core computes in the time that a step takes in any case, for calls of small operations."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A cell with its seed, as the plan of a study gives it."""

    cell: str
    backbone: str
    seed: int
    folder: Path
    tokens: int
    """Tokens of training."""
    size: int = 1
    """``scale.target``."""
    flops: float = 0.0
    """FLOPs of training; 0 if the model has not been sized."""
    steps: int = 0
    """Steps of training; 0 if the model has not been sized."""
    stage: str = ""
    """``study.stage``: the runs of a stage are trained before those of the next one."""

    @property
    def work(self) -> float:
        """Return a number that the seconds of training are about proportional to, within a study."""
        return self.flops + STEP_FLOPS * self.steps if self.flops else float(self.tokens * self.size)

    @classmethod
    def of(cls, settings: Settings, *, flops: float = 0.0, steps: int = 0) -> Planned:
        """Return the run of settings; ``flops`` and ``steps`` of its training, where they are known."""
        return cls(
            cell=settings.cell,
            backbone=settings.names.backbone,
            seed=settings.seed,
            folder=settings.folder,
            tokens=settings.budget.tokens,
            size=settings.scale.target or 1,
            flops=flops,
            steps=steps,
            stage=settings.study.stage or "",
        )

    def with_seed(self, seed: int) -> Planned:
        """Return the run of the same configuration with another seed."""
        return dataclasses.replace(self, seed=seed, folder=self.folder.with_name(f"s{seed}"))
