"""Settings of a study: what its analysis is asked for, and the values that its YAML files share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


@dataclass(kw_only=True)  # OmegaConf fills no frozen dataclass into a field that is null
class WorkloadConfig:
    """A workload of a track, as a YAML of ``conf/track`` describes it."""

    differ: str = ""
    """Why model families differ on it."""
    target: float | None = None
    """Score on validation to which tokens and FLOPs are counted."""
    scored: str | None = None
    """The extra evaluation whose score counts, such as a greater length; null for the task's test split."""
    held_out: dict[str, str] = field(default_factory=dict)
    """Held-out variants: a name, and the extra evaluation."""
    offline: list[str] = field(default_factory=list)
    """Overrides that replace data to be downloaded, to price runs and to shrink them."""
    miniature: list[str] = field(default_factory=list)
    """Overrides that shrink its runs, beside those of the track."""
    tokens: int | None = None
    """Training tokens, where the tuning runs of the track have fewer."""
    tuning_tokens: int | None = None
    """Training tokens of the tuning runs."""


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """Requests of a study to its analysis; ``tuned`` and ``values`` decide settings of its runs."""

    name: str = MISSING
    """Name of the study, the folder of its runs."""
    baseline: str | None = None
    """The model with which the others are compared; null compares all pairs and shows the best model."""
    margin: float | None = None
    """The difference within which models are equivalent, in units of the score; null for the metric's own."""
    shared_seeds: bool = False
    """Differences are computed within seeds (blocked design)."""
    against: str | None = None
    """A table of scores against a number column of the results frame, such as ``training_epochs``."""
    solved: float | None = None
    """A table of the fraction of seeds that reach this accuracy."""
    steps_to: str | None = None
    """A table of the steps in which each model reaches the final score of this model."""
    published: list[str] = field(default_factory=list)
    """Published results on the same question, one line each."""
    tuned: str | None = None
    """File of learning rates that an earlier study chose, from which each run reads its own."""
    fixed_grid: bool = False
    """Accept a tuned learning rate at an edge of its grid, so that all models have equally many trials."""
    rate_from: str | None = None
    """Recorded by a run in place of ``tuned``: the file that its learning rate was read from."""
    stored: str | None = None
    """A Parquet file of results, relative to the root of the checkout; runs in it count as complete."""
    miniature: list[str] = field(default_factory=list)
    """Of a track: overrides that shrink every run to one of seconds."""
    workload: WorkloadConfig | None = None
    """Of a track: the workload of a run."""
    values: dict[str, Any] = field(default_factory=dict)
    """Values that YAML files refer to, such as a learning rate for each model:
    ``${study.values.learning_rate.${names.backbone}}``."""

    def __post_init__(self) -> None:
        if self.solved is not None and not 0 < self.solved <= 1:
            raise ValueError(
                f"study.solved={self.solved:g} must be an accuracy above 0, up to 1, such as 0.95"
            )
        if self.margin is not None and self.margin < 0:
            raise ValueError(f"study.margin={self.margin:g} must be a difference of scores, 0 or more")
