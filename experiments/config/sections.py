"""The sections of a composed configuration that belong to the harness.

``experiments.run.settings.read_settings`` adds the settings that a backbone, an objective and a task declare.

Some keys of the YAML files are no settings of a run. Of ``scale``, ``targets`` has a size for each axis, one
of which becomes ``scale.target``; other YAML files read ``heads`` and ``published``. Of ``budget``,
``tokens_per_parameter`` and ``batch_tokens`` become ``tokens`` and ``batch_size``. A run stores only the
resulting values.
"""

from __future__ import annotations

import dataclasses
import errno
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, MissingMandatoryValue, OmegaConfBaseException

from archbench.experiments.config.optimizer import OptimizerConfig, read_optimizer
from archbench.experiments.config.schema import (
    AXIS_UNITS,
    BudgetConfig,
    DeviceConfig,
    Names,
    ParallelConfig,
    ScaleConfig,
    Schema,
    TrackingConfig,
    TrainerConfig,
)
from archbench.experiments.config.structured import check_file_name, first_line, typed, whole_number_hint
from archbench.experiments.config.study import StudyConfig
from archbench.experiments.runtime.errors import ConfigError, nearest
from archbench.experiments.runtime.secrets import refuse_secret


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
    """The full configuration with every reference resolved, as written to config.yaml."""


def read_sections(cfg: DictConfig) -> Sections:
    """Read and check the harness's sections of a composed configuration. Raises ConfigError."""
    return parse_sections(read_tree(cfg))


def plain_tree(cfg: DictConfig) -> dict[str, Any]:
    """Return a composed configuration as plain values, every reference resolved. Raises ConfigError."""
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
    keys = {field.name: field.type for field in dataclasses.fields(Schema)}
    for key in tree:
        if key not in keys:
            raise ConfigError(f"{key}: there is no such key{nearest(key, keys)}")
    for key, annotation in keys.items():
        if annotation == "Any" and not isinstance(tree.get(key), dict):
            raise ConfigError(f"{key}={tree.get(key)} must be a mapping of settings")
    budget = with_tokens(tree["budget"], tree["scale"], tree["task"])
    defaults = dataclasses.asdict(StudyConfig())
    study = {key: value for key, value in tree["study"].items() if value != defaults.get(key, ...)}
    return {**tree, "scale": with_target(tree["scale"]), "budget": budget, "study": study}


def _refuse_loop(runs: Path) -> None:
    """Raise ConfigError if a folder lies behind a link to itself: each file in it would look damaged."""
    try:
        runs.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ConfigError(f"runs={runs} leads to a link to itself: name another folder") from None


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
    _refuse_loop(Path(tree["runs"]))
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


def with_target(section: dict[str, Any]) -> dict[str, Any]:
    """Return the section ``scale`` with ``target``, that of its axis, in place of ``targets``.

    A section without ``targets`` was stored by a run and is returned unchanged. Without a target every width
    is that of its YAML.

    Raises:
        ConfigError: there are targets, but none for the axis, or one is no positive whole number.
    """
    settings = {key: v for key, v in section.items() if key not in ("targets", "heads", "published")}
    if "targets" not in section:
        return settings
    axis, targets = section.get("axis"), section["targets"] or {}
    if "target" in section:
        raise ConfigError(
            f"scale.target={section['target']}: a target belongs to its axis: write "
            f"scale.targets.{axis}={section['target']} ({AXIS_UNITS.get(str(axis), 'the axis')})"
        )
    if not isinstance(targets, dict):
        raise ConfigError(f"scale.targets={targets} must name a size for each axis: {{flops: 900000}}")
    for name in targets:
        if name not in AXIS_UNITS:
            raise ConfigError(f"scale.targets.{name}: there is no such axis{nearest(str(name), AXIS_UNITS)}")
    sizes = {name: _target_size(name, size) for name, size in targets.items() if size is not None}
    if sizes and axis in AXIS_UNITS and axis not in sizes:
        raise ConfigError(
            f"scale.axis={axis}: no target is named for it, only for {', '.join(sorted(sizes))}: choose one "
            f"of these, or give scale.targets.{axis}, in {AXIS_UNITS[axis]}"
        )
    return {**settings, "target": sizes.get(str(axis))}


def with_tokens(budget: dict[str, Any], scale: dict[str, Any], task: dict[str, Any]) -> dict[str, Any]:
    """Return the section ``budget`` with ``tokens`` and ``batch_size`` in place of keys that determine them.

    Args:
        budget: section in which ``tokens_per_parameter`` may determine ``tokens``, and ``batch_tokens``
            ``batch_size``.
        scale: section in which ``targets.total`` is the number of parameters, so that all models of a scale
            train on equally many tokens.
        task: section in which ``sequence_length`` divides a batch in tokens, rounded to full sequences.

    Raises:
        ConfigError: both keys are given, or a value that one depends on is missing or not positive.
    """
    completed = dict(budget)
    if (factor := _take_factor(completed, "tokens_per_parameter", "tokens")) is not None:
        parameters = (scale.get("targets") or {}).get("total")
        if parameters is None:
            raise ConfigError(
                f"budget.tokens_per_parameter={factor:g}: the scale names no number of parameters: give "
                "scale.targets.total, or budget.tokens and leave tokens_per_parameter null"
            )
        completed["tokens"] = max(1, round(factor * _target_size("total", parameters)))
    if (tokens := _take_factor(completed, "batch_tokens", "batch_size")) is not None:
        length = task.get("sequence_length")
        if not isinstance(length, int) or length < 1:
            raise ConfigError(
                f"budget.batch_tokens={tokens:.0f}: the task has no task.sequence_length to divide it by: "
                "give budget.batch_size and leave batch_tokens null"
            )
        completed["batch_size"] = max(1, round(tokens / length))
    return completed


def _take_factor(budget: dict[str, Any], key: str, determined: str) -> float | None:
    """Remove ``key`` from the budget and return its value, a positive number; None where it is null."""
    value = budget.pop(key, None)
    if value is None:
        return None
    if budget.get(determined) is not None:
        raise ConfigError(
            f"budget.{key}={value} and budget.{determined}={budget[determined]} set the same quantity twice; "
            f"set budget.{key}=null or budget.{determined}=null"
        )
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ConfigError(f"budget.{key}={value} must be a positive number, or null")
    return float(value)


def _target_size(axis: str, size: Any) -> int:
    """Return a target as an integer; 3e6 is one, too."""
    is_number = isinstance(size, int | float) and not isinstance(size, bool)
    if not is_number or size < 1 or size != int(size):
        key = f"scale.targets.{axis}"
        hint = whole_number_hint(key, str(size))
        raise ConfigError(f"{key}={size} must be a positive whole number, or null{hint}")
    return int(size)
