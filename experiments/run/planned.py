"""A run before it is trained: where it will be, and how long it takes relative to others."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiments.run.settings import Settings


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
    """``scale.target``. Within a study, training takes about as long as tokens times size."""

    @classmethod
    def of(cls, settings: Settings) -> Planned:
        """Return the run of settings."""
        return cls(
            cell=settings.cell,
            backbone=settings.names.backbone,
            seed=settings.seed,
            folder=settings.folder,
            tokens=settings.budget.tokens,
            size=settings.scale.target or 1,
        )

    def with_seed(self, seed: int) -> Planned:
        """Return the run of the same configuration with another seed."""
        return dataclasses.replace(self, seed=seed, folder=self.folder.with_name(f"s{seed}"))
