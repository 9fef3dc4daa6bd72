"""A study: its settings, the files of ``conf/study/``, and the commands that outputs print for the user."""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from archbench.experiments.config import CONF
from archbench.experiments.runtime.yaml_state import parse_yaml

TRACK = "track/"
"""Folder of the studies that are tracks, which are run by ``archbench track``."""


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
    """Overrides that replace data to be downloaded, to estimate the cost of runs and to shrink them."""
    miniature: list[str] = field(default_factory=list)
    """Overrides that shrink its runs, in addition to those of the track."""
    tokens: int | None = None
    """Training tokens, if the tuning runs of the track have fewer."""
    tuning_tokens: int | None = None
    """Training tokens of the tuning runs."""


PROTOCOLS = ("1.0",)
"""Versions of the rules of tuning and verdicts."""
RULES = "1.0"
"""Version of the rules of tracks and submissions (docs/tracks/rules.md), which every run stores."""


@dataclass(kw_only=True)  # not frozen, as above
class LadderConfig:
    """The place of a run on a ladder of difficulties of one task."""

    name: str = MISSING
    """Name of the ladder."""
    difficulty: float = MISSING
    """Difficulty of the run, such as a number of pairs."""
    unit: str = MISSING
    """The unit of the difficulty, such as ``pairs``."""


@dataclass(kw_only=True)  # not frozen, as above
class TuningConfig:
    """Result of the search for the learning rate of a run, by the tuning rule of a protocol."""

    validation: float = MISSING
    """Score of the best setting on the validation split, mean over the tuning seeds."""
    second_validation: float = MISSING
    """That of the second-best setting; NaN without another one."""
    trials: int = MISSING
    """Settings tried, each with every tuning seed."""
    sensitivity: float = MISSING
    """The larger increase of the loss at the neighbouring learning rates; infinite if one diverged."""


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """Settings of the analysis of a study; ``tuned`` and ``values`` affect its runs."""

    name: str = MISSING
    """Name of the study, the folder of its runs."""
    protocol: str | None = None
    """Version of the rules of tuning: ``1.0``; null for a grid of rates. Verdicts do not depend on it."""
    baseline: str | None = None
    """Model that all other models are compared with; null compares all pairs and shows the best model."""
    explains: str | None = None
    """The baseline with a part of the other models, such as a convolution: the fraction of their leads that
    it has is reported."""
    margin: float | None = None
    """Difference within which models are equivalent, in units of the score; null for that of the metric."""
    shared_seeds: bool = False
    """Differences are computed within seeds (blocked design)."""
    against: str | None = None
    """A table of scores against a numeric column of the results frame, such as ``training_epochs``."""
    solved: float | None = None
    """A table of the fraction of seeds that reach this accuracy."""
    stage: str | None = None
    """Stage of a run in a parallel sweep, such as its budget. Stages are trained in the order of the sweep;
    after each the answer so far is printed. Null: the longest runs of the sweep begin first."""
    ladder: LadderConfig | None = None
    """A table of the largest difficulty that each model solves: at an accuracy of ``solved``, 0.9 if null."""
    steps_to: str | None = None
    """A table of the steps in which each model reaches the final score of this model."""
    published: list[str] = field(default_factory=list)
    """Published results on the same question, one line each."""
    tuned: str | None = None
    """File of learning rates that an earlier study selected; each run reads that of its model. A path
    that is not in the current folder is relative to the folder of ``conf``."""
    fixed_grid: bool = False
    """Accept a tuned learning rate at an edge of its grid, so that all models have equally many trials."""
    rate_from: str | None = None
    """File that the learning rate was read from; a run stores it in place of ``tuned``."""
    tuning: TuningConfig | None = None
    """The search that chose the learning rate; a run stores it next to ``rate_from``."""
    stored: str | None = None
    """A Parquet file of results, relative to the root of the checkout; runs in it count as complete."""
    miniature: list[str] = field(default_factory=list)
    """Overrides that shrink every run of a track to seconds."""
    workload: WorkloadConfig | None = None
    """Workload of a run of a track."""
    values: dict[str, Any] = field(default_factory=dict)
    """Values that YAML files refer to, such as a learning rate for each model:
    ``${study.values.learning_rate.${names.backbone}}``."""

    def __post_init__(self) -> None:
        if self.solved is not None and not 0 < self.solved <= 1:
            raise ValueError(
                f"study.solved={self.solved:g} must be an accuracy above 0, up to 1, such as 0.95"
            )
        if self.protocol is not None and self.protocol not in PROTOCOLS:
            raise ValueError(f"study.protocol={self.protocol} must be {' or '.join(PROTOCOLS)}, or null")
        if self.margin is not None and self.margin < 0:
            raise ValueError(f"study.margin={self.margin:g} must be a difference of scores, 0 or more")


def study_words() -> dict[str, str]:
    """Return the value of ``study=`` for each study, by ``study.name``, the name of its folder of runs.

    A file that cannot be read is left out: composing it reports the reason.
    """
    options = {}
    for path in sorted((CONF / "study").rglob("*.yaml")):
        with contextlib.suppress(ValueError, OSError):
            tree = parse_yaml(path.read_text(encoding="utf-8"))
            study = tree.get("study") if isinstance(tree, dict) else None
            if isinstance(study, dict) and "name" in study:
                options[str(study["name"])] = path.relative_to(CONF / "study").with_suffix("").as_posix()
    return options


def typed_command(name: str, *arguments: str) -> str:
    """Return a command as a user types it. It works in every folder, regardless of the modules there."""
    return shlex.join(["archbench", *name.split(), *arguments])


def train_words(command: str) -> list[str]:
    """Return the overrides of a recorded ``archbench train`` or ``python -m archbench.experiments.train``."""
    parts = shlex.split(command)
    return parts[2:] if parts[:1] == ["archbench"] else parts[3:]


def study_command(name: str, study: Path, *more: str) -> str:
    """Return a command that reads the runs of a study, as a user types it in the current folder.

    Args:
        name: name of the command, such as ``compare``.
        study: folder of its runs.
        more: additional arguments.
    """
    return _command(name, f"study={study.name}", study, *more)


def train_command(study: Path, *more: str) -> str:
    """Return the command that trains the missing runs of a study of ``conf/study/``; empty for other studies.

    Args:
        study: folder of its runs.
        more: additional arguments; the command of a track does not accept them.
    """
    option = study_words().get(study.name, "")
    if option.startswith(TRACK):
        return _command("track", option.removeprefix(TRACK).removesuffix("_rates"), study)
    return _command("train", f"study={option}", study, *more) if option else ""


def _command(name: str, choice: str, study: Path, *more: str) -> str:
    runs = study.parent
    if runs.is_absolute() and runs.is_relative_to(Path.cwd()):
        runs = runs.relative_to(Path.cwd())
    folder = [] if runs == Path("runs") else [f"runs={runs}"]
    return typed_command(name, choice, *folder, *more)
