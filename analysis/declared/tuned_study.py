"""A study with test seeds, whose learning rates a tuning study chooses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class TunedStudy:
    """A study and its tuning study, which has the same name with the suffix ``_rates``."""

    study: str
    """Value of ``study=`` for the study with the test seeds."""
    folder: str
    """Name of the study, the folder of its runs."""
    rates_folder: str
    """Name of the tuning study."""
    learning_rates: list[float]
    """Learning rates that every search begins with; with a protocol, empty for its own."""
    fixed_grid: bool
    """True if no other learning rates are tried; else a model's grid grows until its best rate is inside."""

    @property
    def rates_study(self) -> str:
        """Return the value of ``study=`` for the tuning study."""
        return f"{self.study}_rates"


def rates_file(runs: Path, rates_folder: str) -> Path:
    """Return the file with the rates that were chosen from a tuning study, which ``study.tuned`` names."""
    return runs / rates_folder / "analysis" / "rates.yaml"
