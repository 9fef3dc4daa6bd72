"""From a composed Hydra configuration to typed, validated settings.

What is wrong is said in one message with the key, the value, the remedy and the
nearest valid name, before anything is allocated.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from archbench.architectures.backbone import TRAINING, Backbone, BackboneConfig
from archbench.experiments.config import CONF
from archbench.experiments.config.digest import result_settings, settings_digest
from archbench.experiments.config.schema import TrainerConfig
from archbench.experiments.config.sections import Sections, parse_sections
from archbench.experiments.config.structured import component, first_line, load_class
from archbench.experiments.objectives.objective import Objective
from archbench.experiments.run.model_files import ModelSpec, fingerprint, is_run_folder, read_model_spec
from archbench.experiments.run.tuned_rates import apply_tuned_rate
from archbench.experiments.runtime.errors import ConfigError, nearest_folder
from archbench.experiments.runtime.yaml_state import read_yaml
from archbench.experiments.tasks.task import Task

KEY_LENGTH = 64
"""W&B takes run ids up to this length."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Initial:
    """A saved model whose weights training starts from, or a run whose training is continued."""

    path: Path
    spec: ModelSpec
    fingerprint: str
    """Hash of the weights, independent of their path."""


@dataclass(frozen=True, kw_only=True)
class Settings(Sections):
    """Everything about one run, typed and checked."""

    backbone_class: type[Backbone]
    backbone: BackboneConfig
    objective_class: type[Objective]
    objective: Any
    task_class: type[Task]
    task: Any
    extra_evaluations: dict[str, Any]
    """The settings of the task in each further test, by its overrides."""
    init_from: Initial | None
    """The model that training starts from; None for random weights."""
    continue_from: Initial | None
    """The run whose training is continued, with its step and optimizer state; usually None."""

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits of all settings that decide the result, except the seed."""
        kept = result_settings(self.resolved, self.backbone.unused_sections)
        for name, source in (("init_from", self.init_from), ("continue_from", self.continue_from)):
            if source is not None:
                kept[name] = source.fingerprint
        return settings_digest(kept)

    @property
    def cell(self) -> str:
        """The name of the run configuration without its seed."""
        return f"{self.names.backbone}-{self.names.task}-{self.names.scale}"

    @property
    def key(self) -> str:
        """The run key: it names the folder and the W&B run, and checkpoints record it."""
        return f"{self.cell}-{self.digest}-s{self.seed}"

    @property
    def folder(self) -> Path:
        return self.runs / self.study.name / f"{self.cell}-{self.digest}" / f"s{self.seed}"


def read_settings(sections: Sections, *, untuned: bool = False) -> Settings:
    """Add to the harness's sections what the backbone, the objective and the task declare.

    The model of ``init_from`` and the learning rate of ``study.tuned`` are filled into the configuration.

    Args:
        sections: from ``read_sections``.
        untuned: take the default learning rate as long as there is no file of tuned ones, to price a run.

    Raises:
        ConfigError: a setting is wrong, or parts do not fit each other.
    """
    tree = dict(sections.resolved)
    initial = _adopt_initial(tree)
    backbone_class, backbone = component(tree, "backbone", Backbone)  # type: ignore[type-abstract]
    objective_class, objective = component(tree, "objective", Objective)  # type: ignore[type-abstract]
    task_class, task = component(tree, "task", Task)  # type: ignore[type-abstract]
    _check_pair(tree["names"], backbone_class, objective_class, task_class)
    if tree["study"].get("tuned") is not None:  # after the check, since a rejected pair has no rate
        apply_tuned_rate(tree, optional=untuned)
    if tree != sections.resolved:
        sections = parse_sections(tree)
    names = sections.names
    if getattr(objective, "separate_documents", False) and not backbone_class.capabilities.packs:
        raise ConfigError(
            f"objective.separate_documents=true: backbone={names.backbone} cannot keep documents of one "
            "sequence apart; leave it false, or choose another backbone"
        )
    if getattr(backbone, "time_embedding", False) and not objective_class.gives_time:
        raise ConfigError(
            f"backbone.time_embedding=true: objective={names.objective} has no time to tell; leave it false, "
            "or choose masked_diffusion"
        )
    objective_class = objective_class.for_backbone(backbone_class.capabilities)
    settings = Settings(
        **{field.name: getattr(sections, field.name) for field in dataclasses.fields(Sections)},
        backbone_class=backbone_class,
        backbone=backbone,
        objective_class=objective_class,
        objective=objective,
        task_class=task_class,
        task=task,
        extra_evaluations=_extra_evaluations(tree, sections.trainer),
        init_from=initial,
        continue_from=_continued_run(tree),
    )
    if settings.optimizer.mup_base_width is not None and initial is not None:
        raise ConfigError(
            f"optimizer.mup_base_width={settings.optimizer.mup_base_width} together with "
            f"init_from={initial.path}: muP sets initial weights, and these have been trained; leave it null"
        )
    if settings.scale.target is None and backbone.d_model is None:
        raise ConfigError(
            "backbone.d_model and scale.targets are both null: give a width, or a size to reach"
        )
    if len(settings.key) > KEY_LENGTH:
        raise ConfigError(
            f"names: the run key {settings.key} has {len(settings.key)} characters, W&B takes {KEY_LENGTH}: "
            "shorten the names of the YAML files"
        )
    return settings


def _adopt_initial(tree: dict[str, Any]) -> Initial | None:
    """Puts the backbone of ``init_from`` into the configuration, as large as it is.

    A backbone or a scale on the command line would be ignored, so it is rejected unless it is the same.
    Settings of the backbone that matter only in training replace those of the model.
    """
    if tree.get("init_from") is None:
        return None
    path = _folder(tree, "init_from")
    spec = read_model_spec(path)
    section = spec.section()
    for word in HydraConfig.get().overrides.task:
        key = word.partition("=")[0]
        group = key.split(".")[0].lstrip("+~")
        same = tree["names"]["backbone"] == spec.name
        if "." in key:
            section = _with_training_setting(section, tree, key)
            same = OmegaConf.select(OmegaConf.create(tree), key) == OmegaConf.select(
                OmegaConf.create({"backbone": section}), key
            )
        if group in ("backbone", "scale") and not (group == "backbone" and same):
            raise ConfigError(
                f"{word} together with init_from={path}, which says what the model is: leave it out"
            )
    tree["backbone"], tree["scale"] = section, {**tree["scale"], "axis": "non_embedding", "target": None}
    tree["names"] = {**tree["names"], "backbone": spec.name, "scale": "given"}
    return Initial(path=path, spec=spec, fingerprint=fingerprint(path))


def _with_training_setting(section: dict[str, Any], tree: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the section of a saved backbone with the value of ``key`` in the configuration, where it changes
    how the model is trained and not what it computes."""
    name = key.removeprefix("backbone.")
    part, _, leaf = name.partition(".")
    saved = section.get(part)
    if name not in (*TRAINING, "experts.bias_rate") or not isinstance(saved, dict) or leaf not in saved:
        return section
    return section | {part: saved | {leaf: tree["backbone"][part][leaf]}}


def _folder(tree: dict[str, Any], key: str) -> Path:
    """Return the folder that a setting names. Raises ConfigError if it does not exist."""
    path = Path(tree[key])
    if not path.is_dir():
        raise ConfigError(f"{key}={path}: there is no such folder{nearest_folder(path)}")
    return path


def _continued_run(tree: dict[str, Any]) -> Initial | None:
    """Return the run of ``continue_from``. Raises ConfigError if it is no run, or with ``init_from``."""
    if tree.get("continue_from") is None:
        return None
    path = _folder(tree, "continue_from")
    if tree.get("init_from") is not None:
        raise ConfigError(
            f"continue_from={path} together with init_from={tree['init_from']}: choose where training starts"
        )
    if not is_run_folder(path):
        raise ConfigError(
            f"continue_from={path} is no folder of a run: to start from its weights alone, use init_from"
        )
    return Initial(path=path, spec=read_model_spec(path), fingerprint=fingerprint(path))


def _extra_evaluations(tree: dict[str, Any], trainer: TrainerConfig) -> dict[str, Any]:
    """The settings of the task in each of ``trainer.extra_evaluations``."""
    tasks = {}
    for overrides in trainer.extra_evaluations:
        key = "trainer.extra_evaluations"
        if not overrides.strip() or not all("=" in word for word in overrides.split()):
            raise ConfigError(
                f"{key}: {overrides!r} must be settings of the task, such as 'sequence_length=256'"
            )
        try:
            changes = OmegaConf.to_container(OmegaConf.from_dotlist(overrides.split()))
        except (YAMLError, OmegaConfBaseException, RecursionError) as error:
            reason = first_line(error) or type(error).__name__
            raise ConfigError(f"{key}: {overrides[:100]!r} cannot be read: {reason}") from None
        changed = OmegaConf.merge(tree["task"], changes)
        try:
            tasks[overrides] = component({"task": OmegaConf.to_container(changed)}, "task", Task)[1]  # type: ignore[type-abstract]
        except ConfigError as error:
            raise ConfigError(f"{key}: {overrides}: {error}") from None
    return tasks


def _check_pair(
    names: dict[str, str], backbone: type[Backbone], objective: type[Objective], task: type[Task]
) -> None:
    """Refuses what cannot meet, naming those that can."""
    missing = objective.missing_capability(backbone.capabilities)
    if missing is not None:
        partners = _partners(
            "backbone", Backbone, lambda b: objective.missing_capability(b.capabilities) is None
        )
        objectives = _partners(
            "objective", Objective, lambda o: o.missing_capability(backbone.capabilities) is None
        )
        raise ConfigError(
            f"objective={names['objective']} needs {missing}, and backbone={names['backbone']} is "
            f"{backbone.capabilities.describe()}. Backbones for this objective: {partners}. "
            f"Objectives for this backbone: {objectives}."
        )
    refused = objective.incompatibility(task)
    if refused is not None:
        tasks = _partners("task", Task, lambda t: objective.incompatibility(t) is None)
        raise ConfigError(
            f"objective={names['objective']} cannot train on task={names['task']}: {refused}. "
            f"Tasks for this objective: {tasks}."
        )


def _partners(group: str, base: type[Any], suits: Any) -> str:
    """Names of the YAMLs of a group whose class suits; presets, whose width is given, are not listed."""
    return (
        ", ".join(name for name, target in _sized(group) if suits(load_class(target, base, group))) or "none"
    )


@functools.cache
def _sized(group: str) -> list[tuple[str, str]]:
    """The YAMLs of a group that leave their size open, each with the path of its class."""
    classes = []
    for path in sorted((CONF / group).glob("*.yaml")):
        yaml = OmegaConf.create(read_yaml(path))
        target = OmegaConf.select(yaml, f"{group}._target_") or OmegaConf.select(yaml, "_target_")
        if target and OmegaConf.select(yaml, "d_model") is None:
            classes.append((path.stem, str(target)))
    return classes
