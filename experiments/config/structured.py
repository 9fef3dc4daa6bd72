"""Turns plain values into typed, checked ones; every mistake is a ConfigError that names its key."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import math
import re
import site
import sys
import sysconfig
import typing
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from experiments.runtime.errors import ConfigError, nearest
from experiments.runtime.secrets import refuse_secret

T = TypeVar("T")

PROJECT = ("architectures", "experiments")
"""The packages whose classes a configuration may name, wherever they are installed."""


LONGEST_NAME = 100
"""Characters of a name at most: file systems take 255 bytes, and others are made of it."""


def check_file_name(key: str, value: str) -> None:
    """Names become folders, and must not lead out of theirs."""
    refuse_secret(key, value)
    if len(value) > LONGEST_NAME:
        raise ConfigError(
            f"{key} has {len(value)} characters and names a folder: at most {LONGEST_NAME} characters"
        )
    if not value or not all(c.isalnum() or c in "-_." for c in value) or value.startswith((".", "-")):
        raise ConfigError(
            f"{key}={value!r} names a folder: use letters, digits, '-', '_' and '.' only, and begin "
            "with neither '-' nor '.'"
        )


def typed(cls: type[T], values: dict[str, Any], key: str) -> T:
    """``values`` as an instance of the dataclass ``cls``.

    Raises ConfigError naming ``key``, which is empty at the root.
    """
    assert dataclasses.is_dataclass(cls)
    prefix = f"{key}." if key else ""
    _check_finite(values, key)
    _check_kinds(cls, values, prefix)
    try:
        merged = OmegaConf.merge(_schema(cls), values)
        instance = OmegaConf.to_object(merged)
    except ConfigKeyError as error:
        # The key may be one of a dataclass inside this one.
        inside = error.object_type if dataclasses.is_dataclass(error.object_type) else cls
        names = [f.name for f in dataclasses.fields(inside)]
        unknown = f"{prefix}{error.full_key or error.key}"
        raise ConfigError(
            f"{unknown}: {inside.__name__} has no such key{nearest(str(error.key), names)}"
        ) from None
    except MissingMandatoryValue as error:
        missing = f"{prefix}{error.full_key}"
        raise ConfigError(f"{missing} has no value: set {missing}=...") from None
    except OmegaConfBaseException as error:
        where = f"{prefix}{error.full_key}" if error.full_key else key
        if "is not a ListConfig" in str(error):
            value = OmegaConf.select(OmegaConf.create(values), error.full_key or "")
            raise ConfigError(_no_list(where, value)) from None
        hint = ""
        if "converted to Integer" in str(error):
            value = OmegaConf.select(OmegaConf.create(values), error.full_key or "")
            hint = whole_number_hint(where, str(value))
        raise ConfigError(f"{where}: {first_line(error)}{hint}") from None
    except ValueError as error:
        named = not key or str(error).startswith(f"{key}.")
        raise ConfigError(str(error) if named else f"{key}: {error}") from None
    _check_finite(OmegaConf.to_container(merged), key)  # OmegaConf makes a number of the text "nan"
    return instance  # type: ignore[return-value]


def whole_number_hint(key: str, text: str) -> str:
    """Return what to write where an integer was given as 1e6, 1M, 0-4 or [0, 1]; empty where it is none."""
    interval = re.fullmatch(r"(\d{1,9})(?:-|:|\.\.)(\d{1,9})", text)
    if interval and (first := int(interval[1])) < (last := int(interval[2])):
        if last - first < 10:
            return f"; for a run of each write -m {key}={','.join(map(str, range(first, last + 1)))}"
        return f"; for a run of each write -m '{key}=range({first},{last + 1})'"
    if several := re.fullmatch(r"\[?\s*(\d+(?:\s*,\s*\d+)+)\s*\]?", text):
        return f"; for a run of each write -m {key}={several[1].replace(' ', '')}"
    found = re.fullmatch(r"([\d.]+(?:e\+?\d+)?)([kKmMgGbB]?)", text)
    if found is None or found[1].count(".") > 1:
        return ""
    number = float(found[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}[found[2].lower()]
    return f"; write {key}={number:.0f}" if number.is_integer() else ""


def _no_list(key: str, value: Any) -> str:
    """Return the message about a value that should be a list."""
    return f"{key}={value} must be a list: write {key}=[{value}]"


@functools.cache
def _schema(cls: type[Any]) -> DictConfig:
    """The types of a dataclass, as OmegaConf checks them. Not to be changed: merging makes a copy."""
    schema = OmegaConf.structured(cls)
    _unlock(schema)
    return schema


def _check_finite(value: Any, key: str) -> None:
    """No setting may be infinite or not a number: it would pass most comparisons."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key}={value} must be a finite number")
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_finite(inner, f"{key}.{name}" if key else name)
    if isinstance(value, list):
        for place, inner in enumerate(value):
            _check_finite(inner, f"{key}[{place}]")


SWITCHES = ("true", "false", "yes", "no", "on", "off", "0", "1")
"""Words for true and false, as YAML files have them."""


def _check_kinds(cls: type[Any], values: dict[str, Any], prefix: str) -> None:
    """Refuse what OmegaConf takes in silence: any number for true, and lists inside lists of plain values."""
    hints = _hints(cls)  # type: ignore[arg-type]
    for name, value in values.items():
        hint = hints.get(name)
        options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, UnionType) else (hint,)
        inner = next((each for each in options if dataclasses.is_dataclass(each)), None)
        if inner is not None and isinstance(value, dict):
            _check_kinds(inner, value, f"{prefix}{name}.")  # type: ignore[arg-type]
        elif bool in options and isinstance(value, int | str) and str(value).lower() not in SWITCHES:
            raise ConfigError(f"{prefix}{name}={value} must be true or false")
        elif isinstance(value, list):
            _check_elements(options, value, f"{prefix}{name}")
        elif isinstance(value, dict) and all(typing.get_origin(each) is list for each in options):
            raise ConfigError(_no_list(f"{prefix}{name}", value))


def _check_elements(options: Sequence[Any], value: list[Any], key: str) -> None:
    """Check the elements of a list: no container among plain values; those of a class as ``typed`` does."""
    kinds = [kind for each in options if typing.get_origin(each) is list for kind in typing.get_args(each)]
    plain = kinds and set(kinds) <= {int, float, str, bool}
    for place, element in enumerate(value):
        if plain and isinstance(element, list | dict):
            raise ConfigError(f"{key}={value}: {element} must be a single value, not a list or a mapping")
        for kind in filter(dataclasses.is_dataclass, kinds):
            if isinstance(element, dict):
                typed(kind, element, f"{key}[{place}]")  # type: ignore[arg-type]


@functools.cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _unlock(node: DictConfig) -> None:
    """Lets a node made from frozen dataclasses be filled in."""
    OmegaConf.set_readonly(node, False)
    for key in node:
        if (
            OmegaConf.is_dict(node._get_node(key))
            and not OmegaConf.is_missing(node, key)
            and node[key] is not None
        ):
            _unlock(node[key])


def first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def is_own(top: str) -> bool:
    """Return False for modules of the standard library and of installed packages. Imports nothing."""
    if top in sys.stdlib_module_names or top in sys.builtin_module_names:
        return False
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:
        return False
    if spec is None:
        return True  # there is none: the import says so
    files = [spec.origin] if spec.origin else list(spec.submodule_search_locations or [])
    installed = {Path(path).resolve() for name, path in sysconfig.get_paths().items() if name.endswith("lib")}
    installed |= {Path(path).resolve() for path in [*site.getsitepackages(), site.getusersitepackages()]}
    return not any(Path(file).resolve().is_relative_to(folder) for file in files for folder in installed)


def load_class(target: str, base: type[T], key: str) -> type[T]:
    """The class at a dotted path, which must derive from ``base``. Nothing is called.

    A configuration, a stored one too, can therefore name the project's classes and a user's own
    backbones. It cannot make the harness run a function, nor import what Python or an installed
    package brings.
    """
    module, _, name = target.rpartition(".")
    if not module or target.startswith("."):
        raise ConfigError(f"{key}._target_={target} is no dotted path: write package.module.Class")
    top = module.partition(".")[0]
    if top not in PROJECT and not is_own(top):
        raise ConfigError(
            f"{key}._target_={target} is not a {base.__name__} of this project or of yours: {top} belongs to "
            "Python or to an installed package, which are not imported"
        )
    try:
        found = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name and not module.startswith(error.name):
            raise
        raise ConfigError(f"{key}._target_={target}: no module {module!r}; is it on PYTHONPATH?") from None
    except AttributeError:
        raise ConfigError(f"{key}._target_={target}: no class {name!r} in {module!r}") from None
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{key}._target_={target} is not a {base.__name__}")
    return found


def component(tree: dict[str, Any], key: str, base: type[T]) -> tuple[type[T], Any]:
    """Return the class that a group's YAML names in ``_target_``, and its validated configuration.

    Args:
        tree: a configuration, or as much of one as has the group.
        key: the group, for example ``backbone``.
        base: the class it must derive from.

    Raises:
        ConfigError: there is no such class, or a setting does not fit it.
    """
    values = dict(tree[key])
    if "_target_" not in values:
        raise ConfigError(f"{key}: the YAML has no _target_, the dotted path of its {base.__name__}")
    target = str(values.pop("_target_"))
    found = load_class(target, base, key)
    if not hasattr(found, "Config"):
        raise ConfigError(f"{key}._target_={target} has no Config, the dataclass of its settings")
    return found, typed(found.Config, values, key)  # type: ignore[attr-defined]
