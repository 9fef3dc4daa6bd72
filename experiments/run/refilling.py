"""How a saved model fills in blanks, changed from the command line."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from experiments.objectives.diffusion.unmasking_sampler import FillsBlanks
from experiments.run.load_model import Saved
from experiments.runtime.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Refilling:
    """Changes in how blanks are filled in; see FillingConfig. What is null stays as the run has it."""

    steps: int | None = None
    """Forward passes."""
    method: str | None = None
    """``confidence``, ``ancestral`` or ``first_hitting``."""
    order: str | None = None
    """``low_confidence``, ``margin``, ``entropy`` or ``random``."""
    threshold: float | None = None
    """Probability from which on a token is committed at once."""
    block_length: int | None = None
    """Blanks filled in at a time."""
    guidance: float | None = None
    """Classifier-free guidance."""

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"filling.steps={self.steps} must be at least 1")

    @property
    def changes(self) -> dict[str, Any]:
        """What is not null."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def refill(saved: Saved, filling: Refilling) -> None:
    """Changes how the model fills in blanks. Raises ConfigError for a model that does not."""
    if not filling.changes:
        return
    if not isinstance(saved.objective, FillsBlanks):
        name = next(iter(filling.changes))
        raise ConfigError(f"filling.{name}: {saved.description} writes from left to right: leave it out")
    try:
        saved.objective.refill(**filling.changes)
    except ValueError as error:
        raise ConfigError(str(error)) from None
