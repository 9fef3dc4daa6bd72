"""What a person types wins, or is refused with the key that is in the way.

``study=compare budget=smoke`` would train the tokens of the study, whose YAML is composed after that of the
budget. ``scale.targets.total=5000`` would change nothing where FLOPs are held equal. ``~optimizer`` would
train with the defaults of its dataclass.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from experiments.config.dataclass_defaults import config_defaults
from experiments.config.folder import CONF
from experiments.config.size_target import AXIS_UNITS
from experiments.runtime.errors import ConfigError
from experiments.runtime.yaml_state import read_yaml

BESIDE = ("study", "task", "backbone")
"""Groups whose YAML files a study adjusts on purpose, in all of its runs."""


def check_words(cfg: DictConfig, hydra: Any, words: Sequence[str]) -> None:
    """Refuse words that would have no effect, or another one than they say. Raises ConfigError.

    Args:
        cfg: the composed configuration, without the part ``hydra``.
        hydra: that part.
        words: what was typed.
    """
    _refuse_deletions(words)
    _refuse_study_without_runs(hydra, words)
    _refuse_other_axes(cfg, words)
    check_chosen_groups(cfg, hydra, words)


def _refuse_deletions(words: Sequence[str]) -> None:
    """Refuse ``~KEY``: what is deleted would be replaced by a default in silence."""
    for word in words:
        key = word[1:].partition("=")[0]
        if not word.startswith("~") or key.startswith(("hydra", "study.")):
            continue
        if (CONF / key).is_dir():
            names = ", ".join(sorted(path.stem for path in (CONF / key).glob("*.yaml")))
            remedy = f"choose one of its YAML files, {key}=NAME: {names}"
        else:
            remedy = f"set another value, {key}=VALUE (null where there may be none)"
        raise ConfigError(f"~{key}: cannot be deleted, a default would silently take its place; {remedy}")


def _refuse_study_without_runs(hydra: Any, words: Sequence[str]) -> None:
    """Refuse to train the default backbone because a study has no sweep, or does not ask to run it."""
    study = OmegaConf.select(hydra, "runtime.choices.study")
    asked = any(word.startswith("hydra.mode=") for word in sys.argv)  # Hydra adds it to its own list
    if study in (None, "single") or hydra.mode == RunMode.MULTIRUN or asked:
        return
    if params := OmegaConf.select(hydra, "sweeper.params"):
        raise ConfigError(
            f"study={study}: its sweep ({', '.join(params)}) is not run: add mode: MULTIRUN to hydra: in its "
            "YAML, or -m to the command"
        )
    chosen = any(word.startswith(("backbone=", "init_from=", "continue_from=")) for word in words)
    if not chosen and not _chooses_backbone(hydra, study):
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
    bases = [each for each in defaults if isinstance(each, str) and each != "_self_"]
    return (
        "_target_" in (tree.get("backbone") or {})
        or any("/backbone" in key for each in defaults if isinstance(each, dict) for key in each)
        or any(_chooses_backbone(hydra, base) for base in bases)
    )


def _refuse_other_axes(cfg: DictConfig, words: Sequence[str]) -> None:
    """Refuse targets of axes that are not held equal, unless that of ``scale.axis`` was typed beside them."""
    prefix = "scale.targets."
    given = [word.lstrip("+").partition("=") for word in words]
    typed = {
        key.removeprefix(prefix): key for key, _, value in given if key.startswith(prefix) and value != "null"
    }
    axis = _raw(cfg, "scale.axis")
    if "${" in str(axis):  # a study holds another axis equal in each of its arms
        return
    read = {axis}
    if OmegaConf.select(cfg, "budget.tokens_per_parameter") is not None:
        read.add("total")  # counts the tokens
    if typed and not read & set(typed) and set(typed) <= set(AXIS_UNITS):
        other, key = next(iter(typed.items()))
        raise ConfigError(
            f"{key}: scale.axis={axis} is in the way, so that this target changes nothing: add "
            f"scale.axis={other} to hold {AXIS_UNITS[other]} equal, or set {prefix}{axis} instead"
        )


def check_chosen_groups(cfg: DictConfig, hydra: Any, words: Sequence[str]) -> None:
    """Refuse a choice of a group that has no effect on keys of its own YAML file.

    Args:
        cfg: the composed configuration, without the part ``hydra``.
        hydra: that part.
        words: what was typed.

    Raises:
        ConfigError: another YAML file overrides what was typed; it names the keys.
    """
    given = {key.lstrip("+"): value for key, _, value in (word.partition("=") for word in words)}
    single = [word for word in given if "." in word]
    swept = OmegaConf.select(hydra, "sweeper.params") or {}
    groups = [name for name in given if not (name in BESIDE or name in swept or re.search("[./]", name))]
    chosen = {group: _chosen_values(hydra, group, given[group]) for group in groups}
    explicit = {key for values, _ in chosen.values() for key in values}
    for group, (values, defaults) in chosen.items():
        option = given[group]
        implied = {key: value for key, value in defaults.items() if key not in explicit}
        lost = [
            (key, value, found)
            for key, value in (implied | values).items()
            if not any(key == word or key.startswith(f"{word}.") for word in single)
            and (found := _raw(cfg, key)) != value
            and _shown(cfg, key, found) != value
        ]
        if lost:
            study = OmegaConf.select(hydra, "runtime.choices.study")
            said = "; ".join(f"{key} is {_shown(cfg, key, found)}, not {value}" for key, value, found in lost)
            remedy = " ".join(f"{key}={value}" for key, value, _ in lost)
            raise ConfigError(
                f"{group}={option}: study={study} is in the way, which sets these keys itself: {said}. Leave "
                f"{group}={option} out, or set them one by one: {remedy}"
            )


def _chosen_values(hydra: DictConfig, group: str, option: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of a YAML file by dotted key, and the defaults of the class that it names."""
    path = _yaml_file(hydra, group, option)
    package = None if path is None else _package(path, group)
    if path is None or package is None:
        return {}, {}
    tree = read_yaml(path)
    defaults = config_defaults(str(tree.get("_target_", "")))
    return dict(_leaves(tree, package)), dict(_leaves(defaults, package))


def _yaml_file(hydra: DictConfig, group: str, option: str) -> Path | None:
    """Return the YAML file of an option; None where there is none."""
    sources = OmegaConf.select(hydra, "runtime.config_sources") or []
    folders = [Path(str(source.path)) for source in sources if source.schema == "file"] or [CONF]
    for folder in folders:
        path = folder / group / f"{option}.yaml"
        if path.is_file():
            return path
    return None


def _package(path: Path, group: str) -> str | None:
    """Return where the keys of a YAML file go: to its group, or to its ``@package``; None for the root."""
    _, found, package = path.read_text(encoding="utf-8").partition("\n")[0].partition("@package")
    if not found:
        return group
    return None if package.strip() == "_global_" else package.strip()


def _leaves(tree: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield dotted key and value of each setting of a YAML file."""
    if not isinstance(tree, dict):
        yield prefix, tree
        return
    for key, value in tree.items():
        if key not in ("defaults", "hydra"):
            yield from _leaves(value, f"{prefix}.{key}")


def _raw(cfg: DictConfig, key: str) -> Any:
    """Return a value as it was written, references unresolved."""
    parent, _, leaf = key.rpartition(".")
    node = OmegaConf.select(cfg, parent)
    raw = OmegaConf.to_container(node, resolve=False) if isinstance(node, DictConfig) else {}
    return raw.get(leaf) if isinstance(raw, dict) else None


def _shown(cfg: DictConfig, key: str, raw: Any) -> Any:
    """Return a value for a message: resolved, where that can be done."""
    try:
        return OmegaConf.select(cfg, key)
    except Exception:  # a reference of a study that needs more than is composed here
        return raw
