"""Reject overrides that would have no effect, or not the stated one, and name the key that is in the way.

``study=compare budget=smoke`` would train the tokens of the study, because its YAML is composed after that of
the budget. ``scale.targets.total=5000`` would change nothing if models have equal FLOPs. ``~optimizer`` would
train with the defaults of its dataclass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from archbench.experiments.config import CONF
from archbench.experiments.config.schema import AXIS_UNITS
from archbench.experiments.config.yaml_files import config_defaults
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.runtime.yaml_state import read_yaml

ADJUSTED = ("study", "task", "backbone")
"""Groups whose YAML files a study adjusts on purpose, in all of its runs."""


def check_words(
    cfg: DictConfig, hydra: Any, overrides: Sequence[str], *, mode_is_given: bool = False
) -> None:
    """Raise ConfigError for overrides that would have no effect, or not the stated one.

    Args:
        cfg: the composed configuration, without the part ``hydra``.
        hydra: that part.
        overrides: the overrides of the command line.
        mode_is_given: True if ``hydra.mode`` is one of them: a study's sweep is then left out on purpose.
    """
    _refuse_deletions(overrides)
    if not mode_is_given:
        _refuse_study_without_runs(hydra, overrides)
    _refuse_other_axes(cfg, overrides)
    _refuse_overridden_groups(cfg, hydra, overrides)


def _refuse_deletions(overrides: Sequence[str]) -> None:
    """Reject ``~KEY``: a default would silently replace what is deleted."""
    for override in overrides:
        key = override[1:].partition("=")[0]
        if not override.startswith("~") or key.startswith(("hydra", "study.")):
            continue
        if (CONF / key).is_dir():
            names = ", ".join(sorted(path.stem for path in (CONF / key).glob("*.yaml")))
            remedy = f"choose one of its YAML files, {key}=NAME: {names}"
        else:
            remedy = f"set another value, {key}=VALUE (null where there may be none)"
        raise ConfigError(f"~{key}: cannot be deleted, a default would silently take its place; {remedy}")


def _refuse_study_without_runs(hydra: DictConfig, overrides: Sequence[str]) -> None:
    """Reject a study that would train the default backbone: it has no sweep, or its sweep is not run."""
    study = OmegaConf.select(hydra, "runtime.choices.study")
    if study in (None, "single") or hydra.mode == RunMode.MULTIRUN:
        return
    if params := OmegaConf.select(hydra, "sweeper.params"):
        raise ConfigError(
            f"study={study}: its sweep ({', '.join(params)}) is not run: add mode: MULTIRUN to hydra: in its "
            "YAML, or -m to the command"
        )
    is_chosen = any(text.startswith(("backbone=", "init_from=", "continue_from=")) for text in overrides)
    if not is_chosen and not _chooses_backbone(hydra, study):
        raise ConfigError(
            f"study={study}: it has no runs: its YAML has neither hydra.sweeper.params nor a backbone; add "
            "one of them, or choose a backbone here: backbone=NAME"
        )


def _chooses_backbone(hydra: DictConfig, study: str) -> bool:
    """Return True if the YAML of a study, or of one that it extends, names or defines a backbone."""
    path = _yaml_file(hydra, "study", study)
    if path is None:
        return True
    tree = read_yaml(path)
    defaults = tree.get("defaults", [])
    bases = [entry for entry in defaults if isinstance(entry, str) and entry != "_self_"]
    return (
        "_target_" in (tree.get("backbone") or {})
        or any("/backbone" in key for entry in defaults if isinstance(entry, dict) for key in entry)
        or any(_chooses_backbone(hydra, base) for base in bases)
    )


def _refuse_other_axes(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Reject targets of axes on which sizes are not equal, unless that of ``scale.axis`` is given, too."""
    prefix = "scale.targets."
    settings = [override.lstrip("+").partition("=") for override in overrides]
    keys = {
        key.removeprefix(prefix): key
        for key, _, value in settings
        if key.startswith(prefix) and value != "null"
    }
    axis = _unresolved(cfg, "scale.axis")
    if "${" in str(axis):  # a study in which each model has an axis of its own
        return
    read = {axis}
    if OmegaConf.select(cfg, "budget.tokens_per_parameter") is not None:
        read.add("total")  # it determines the tokens
    if keys and not read & set(keys) and set(keys) <= set(AXIS_UNITS):
        other, key = next(iter(keys.items()))
        raise ConfigError(
            f"{key}: scale.axis={axis} is in the way, so that this target changes nothing: add "
            f"scale.axis={other} to hold {AXIS_UNITS[other]} equal, or set {prefix}{axis} instead"
        )


def _refuse_overridden_groups(cfg: DictConfig, hydra: DictConfig, overrides: Sequence[str]) -> None:
    """Reject the choice of a YAML file whose keys another YAML file overrides. The message names the keys."""
    chosen = {key.lstrip("+"): value for key, _, value in (text.partition("=") for text in overrides)}
    single_keys = [key for key in chosen if "." in key]
    swept = OmegaConf.select(hydra, "sweeper.params") or {}
    groups = [key for key in chosen if not (key in ADJUSTED or key in swept or re.search("[./]", key))]
    files = {group: _values_and_defaults(hydra, group, chosen[group]) for group in groups}
    explicit = {key for values, _ in files.values() for key in values}
    for group, (values, defaults) in files.items():
        expected = {key: value for key, value in defaults.items() if key not in explicit} | values
        lost = [
            key
            for key, value in expected.items()
            if not any(key == given or key.startswith(f"{given}.") for given in single_keys)
            and _unresolved(cfg, key) != value
            and _resolved(cfg, key) != value
        ]
        if lost:
            study = OmegaConf.select(hydra, "runtime.choices.study")
            changes = "; ".join(f"{key} is {_resolved(cfg, key)}, not {expected[key]}" for key in lost)
            remedy = " ".join(f"{key}={expected[key]}" for key in lost)
            raise ConfigError(
                f"{group}={chosen[group]}: study={study} is in the way, which sets these keys itself: "
                f"{changes}. Leave {group}={chosen[group]} out, or set them one by one: {remedy}"
            )


def _values_and_defaults(hydra: DictConfig, group: str, option: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of a YAML file by dotted key, and the defaults of the class that it names."""
    if (path := _yaml_file(hydra, group, option)) is None:
        return {}, {}
    # The keys of a file belong to its group, or to its package.
    _, has_package, package = path.read_text(encoding="utf-8").partition("\n")[0].partition("@package")
    if package.strip() == "_global_":
        return {}, {}
    section = package.strip() if has_package else group
    tree = read_yaml(path)
    defaults = config_defaults(str(tree.get("_target_", "")))
    return dict(_leaves(tree, section)), dict(_leaves(defaults, section))


def _yaml_file(hydra: DictConfig, group: str, option: str) -> Path | None:
    """Return the YAML file of an option, or None if it does not exist."""
    sources = OmegaConf.select(hydra, "runtime.config_sources") or []
    folders = [Path(str(source.path)) for source in sources if source.schema == "file"] or [CONF]
    paths = (folder / group / f"{option}.yaml" for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def _leaves(tree: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield dotted key and value of each setting of a YAML file."""
    if not isinstance(tree, dict):
        yield prefix, tree
        return
    for key, value in tree.items():
        if key not in ("defaults", "hydra"):
            yield from _leaves(value, f"{prefix}.{key}")


def _unresolved(cfg: DictConfig, key: str) -> Any:
    """Return a value as it is written, references unresolved."""
    parent, _, leaf = key.rpartition(".")
    node = OmegaConf.select(cfg, parent)
    raw = OmegaConf.to_container(node, resolve=False) if isinstance(node, DictConfig) else {}
    return raw.get(leaf) if isinstance(raw, dict) else None


def _resolved(cfg: DictConfig, key: str) -> Any:
    """Return a value with references resolved, if they can be resolved before the run starts."""
    try:
        return OmegaConf.select(cfg, key)
    except Exception:  # a reference of a study to a value that is not composed here
        return _unresolved(cfg, key)
