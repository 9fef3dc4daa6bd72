"""The sections of a composed configuration that belong to the harness, checked without importing torch.

Importing torch takes seconds. A command that trains reads the sections first, so that a mistake is reported
at once, and hands them to ``experiments.run.settings.read_settings``, which adds what a backbone, an
objective and a task declare.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, MissingMandatoryValue, OmegaConfBaseException

from experiments.config.optimizer import OptimizerConfig, read_optimizer
from experiments.config.parallel import ParallelConfig
from experiments.config.schema import (
    BudgetConfig,
    DeviceConfig,
    Names,
    ScaleConfig,
    Schema,
    TrainerConfig,
)
from experiments.config.size_target import with_target, with_tokens
from experiments.config.structured import check_file_name, first_line, typed
from experiments.config.study import StudyConfig
from experiments.config.tracking import TrackingConfig
from experiments.runtime.errors import ConfigError, nearest
from experiments.runtime.secrets import refuse_secret


@dataclass(frozen=True, kw_only=True)
class Sections:
    """The sections that belong to the harness, typed and checked."""

    names: Names
    scale: ScaleConfig
    budget: BudgetConfig
    optimizer: OptimizerConfig
    device: DeviceConfig
    parallel: ParallelConfig
    trainer: TrainerConfig
    tracking: TrackingConfig
    study: StudyConfig
    seed: int
    runs: Path
    """Folder of all studies."""
    resolved: dict[str, Any]
    """The whole configuration with every reference filled in, as written to config.yaml."""


def read_sections(cfg: DictConfig) -> Sections:
    """Read and check the harness's sections of a composed configuration. Raises ConfigError."""
    return parse_sections(read_tree(cfg))


def plain_tree(cfg: DictConfig) -> dict[str, Any]:
    """Return a composed configuration as plain values, every reference filled in. Raises ConfigError."""
    try:
        resolved = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise ConfigError(f"{error.full_key} has no value: set {error.full_key}=...") from None
    except InterpolationKeyError as error:
        raise ConfigError(
            f"{error.full_key}: {first_line(error)}: set {error.full_key}=..., or choose a file that has it"
        ) from None
    except OmegaConfBaseException as error:
        raise ConfigError(f"{getattr(error, 'full_key', '')}: {first_line(error)}") from None
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def read_tree(cfg: DictConfig) -> dict[str, Any]:
    """Return a composed configuration of a run as plain values, completed and checked. Raises ConfigError."""
    tree = plain_tree(cfg)
    _check_groups(tree)
    budget = with_tokens(tree["budget"], tree["scale"], tree["task"])
    unasked = dataclasses.asdict(StudyConfig())
    study = {key: value for key, value in tree["study"].items() if value != unasked.get(key, ...)}
    return {**tree, "scale": with_target(tree["scale"]), "budget": budget, "study": study}


def parse_sections(tree: dict[str, Any]) -> Sections:
    """Check the harness's sections of a ``read_tree``. Raises ConfigError."""
    names = typed(Names, tree["names"], "names")
    for group, name in dataclasses.asdict(names).items():
        check_file_name(f"names.{group}", name)
    if not isinstance(tree["seed"], int) or not 0 <= tree["seed"] < 2**31:
        raise ConfigError(f"seed={tree['seed']} must be a whole number from 0 to {2**31 - 1}")
    study = typed(StudyConfig, tree["study"], "study")
    check_file_name("study.name", study.name)
    if not str(tree["runs"]).strip():
        raise ConfigError(f"runs={str(tree['runs'])!r} must name a folder: '.' is the one you are in")
    refuse_secret("runs", str(tree["runs"]))
    return Sections(
        names=names,
        scale=typed(ScaleConfig, tree["scale"], "scale"),
        budget=typed(BudgetConfig, tree["budget"], "budget"),
        optimizer=read_optimizer(tree["optimizer"]),
        device=typed(DeviceConfig, tree["device"], "device"),
        parallel=typed(ParallelConfig, tree["parallel"], "parallel"),
        trainer=typed(TrainerConfig, tree["trainer"], "trainer"),
        tracking=typed(TrackingConfig, tree["tracking"], "tracking"),
        study=study,
        seed=tree["seed"],
        runs=Path(tree["runs"]),
        resolved=tree,
    )


def _check_groups(tree: dict[str, Any]) -> None:
    """The root has the keys of the schema and no others, and every group is a mapping."""
    known = {f.name: f.type for f in dataclasses.fields(Schema)}
    for key in tree:
        if key not in known:
            raise ConfigError(f"{key}: there is no such key{nearest(key, known)}")
    for key, kind in known.items():
        if kind == "Any" and not isinstance(tree.get(key), dict):
            raise ConfigError(f"{key}={tree.get(key)} must be a mapping of settings")
