"""Convert plain values to instances of dataclasses; each mistake is a ConfigError that names its key."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import math
import re
import sys
import traceback
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from archbench.experiments.config.old_names import current_name
from archbench.experiments.runtime.errors import ConfigError, RunError, is_out_of_memory, nearest
from archbench.experiments.runtime.imported_sources import INSTALLED, PACKAGE
from archbench.experiments.runtime.secrets import refuse_secret

T = TypeVar("T")

LONGEST_NAME = 100
"""Maximum characters of a name: file systems allow 255 bytes, and a folder is named after several of them."""

SWITCHES = ("true", "false", "yes", "no", "on", "off", "0", "1")
"""Spellings of true and false in YAML files."""

TYPES = {
    "Integer": "a whole number",
    "int": "a whole number",
    "Float": "a number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
}
"""Description of the types in OmegaConf's messages."""

LIST_EXPECTED = "{key}={value} must be a list: write {key}=[{value}]"


def check_file_name(key: str, value: str) -> None:
    """Raise ConfigError if a value that names a folder is not a safe name, or leads out of its parent."""
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
    """Return ``values`` as an instance of the dataclass ``cls``.

    Raises ConfigError, which names ``key``. It is empty at the root.
    """
    assert dataclasses.is_dataclass(cls)
    prefix = f"{key}." if key else ""
    _check_types(cls, values, prefix)
    _check_finite(values, key)
    try:
        merged = OmegaConf.merge(_schema(cls), values)
        instance = OmegaConf.to_object(merged)
    except ConfigKeyError as error:
        # The key may belong to a dataclass inside this one.
        owner = error.object_type if dataclasses.is_dataclass(error.object_type) else cls
        names = [field.name for field in dataclasses.fields(owner)]
        unknown = f"{prefix}{error.full_key or error.key}"
        raise ConfigError(
            f"{unknown}: {owner.__name__} has no such key{nearest(str(error.key), names)}"
        ) from None
    except MissingMandatoryValue as error:
        missing = f"{prefix}{error.full_key}"
        raise ConfigError(f"{missing} has no value: set {missing}=...") from None
    except OmegaConfBaseException as error:
        full_key = f"{prefix}{error.full_key}" if error.full_key else key
        if "is not a ListConfig" in str(error):
            value = OmegaConf.select(OmegaConf.create(values), error.full_key or "")
            raise ConfigError(LIST_EXPECTED.format(key=full_key, value=value)) from None
        raise ConfigError(type_message(full_key, error)) from None
    except ValueError as error:
        names_key = not key or str(error).startswith(f"{key}.")
        raise ConfigError(str(error) if names_key else f"{key}: {error}") from None
    _check_finite(OmegaConf.to_container(merged), key)  # OmegaConf converts the text "nan" to a number
    return instance  # type: ignore[return-value]


def type_message(key: str, error: OmegaConfBaseException) -> str:
    """Return OmegaConf's message on a value of another type as key, value and the expected type."""
    message = first_line(error)
    if match := re.fullmatch(r"Incompatible value 'None' for field of type '(int|float|bool|str)'", message):
        return f"{key}=null must be {TYPES[match[1]]}"
    if match := re.fullmatch(r"Value '(.*)' of type '\w+' .* converted to (Integer|Float)", message):
        hint = whole_number_hint(key, match[1]) if match[2] == "Integer" else ""
        return f"{key}={match[1]} must be {TYPES[match[2]]}{hint}"
    if message.endswith("is not Optional"):
        return f"{key}=null: it must have a value"
    return f"{key}: {message}"


def whole_number_hint(key: str, text: str) -> str:
    """Return what to write for an integer given as 1e6, 1M, 0-4 or [0, 1]; empty for other text."""
    interval = re.fullmatch(r"(\d{1,9})(?:-|:|\.\.)(\d{1,9})", text)
    if interval and (first := int(interval[1])) < (last := int(interval[2])):
        if last - first < 10:
            return f"; for a run of each write -m {key}={','.join(map(str, range(first, last + 1)))}"
        return f"; for a run of each write -m '{key}=range({first},{last + 1})'"
    if several := re.fullmatch(r"\[?\s*(\d+(?:\s*,\s*\d+)+)\s*\]?", text):
        return f"; for a run of each write -m {key}={several[1].replace(' ', '')}"
    scaled = re.fullmatch(r"([\d.]+(?:e\+?\d+)?)([kKmMgGbB]?)", text)
    if scaled is None or scaled[1].count(".") > 1:
        return ""
    number = float(scaled[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}[scaled[2].lower()]
    return f"; write {key}={number:.0f}" if number.is_integer() else ""


@functools.cache
def _schema(cls: type[Any]) -> DictConfig:
    """Return the types of a dataclass, as OmegaConf checks them. Not to be changed: merging makes a copy."""
    schema = OmegaConf.structured(cls)
    # Nodes made from frozen dataclasses are read-only; merging fills them in.
    nodes = [schema]
    while nodes:
        node = nodes.pop()
        OmegaConf.set_readonly(node, False)
        inner = [node._get_node(key) for key in node if not OmegaConf.is_missing(node, key)]
        nodes += [child for child in inner if isinstance(child, DictConfig) and not child._is_none()]
    return schema


def _check_finite(value: Any, key: str) -> None:
    """Raise ConfigError for a value that is infinite or not a number: it would pass most comparisons."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key}={value} must be a finite number")
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_finite(inner, f"{key}.{name}" if key else name)
    if isinstance(value, list):
        for index, inner in enumerate(value):
            _check_finite(inner, f"{key}[{index}]")


def _check_types(cls: type[Any], values: dict[str, Any], prefix: str) -> None:
    """Reject what OmegaConf accepts: any number for true, and lists inside lists of plain values."""
    hints = _type_hints(cls)  # type: ignore[arg-type]
    for name, value in values.items():
        hint, key = hints.get(name), f"{prefix}{name}"
        options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, UnionType) else (hint,)
        section = next((option for option in options if dataclasses.is_dataclass(option)), None)
        if section is not None and isinstance(value, dict):
            _check_types(section, value, f"{key}.")  # type: ignore[arg-type]
        elif bool in options and isinstance(value, int | str) and str(value).lower() not in SWITCHES:
            raise ConfigError(f"{key}={value} must be true or false")
        elif (
            str in options and float not in options and isinstance(value, float) and not math.isfinite(value)
        ):
            raise ConfigError(
                f"{key}={value} must be text, not a number: quote it twice, "
                f"'{key}=\"{value}\"', or choose another"
            )
        elif isinstance(value, list):
            lists = [option for option in options if typing.get_origin(option) is list]
            _check_elements([typing.get_args(option)[0] for option in lists], value, key)
        elif isinstance(value, dict) and all(typing.get_origin(option) is list for option in options):
            raise ConfigError(LIST_EXPECTED.format(key=key, value=value))


def _check_elements(types: list[Any], values: list[Any], key: str) -> None:
    """Check the elements of a list, which have one of some types, as ``typed`` checks values."""
    is_plain = types and set(types) <= {int, float, str, bool}
    for index, element in enumerate(values):
        if is_plain and isinstance(element, list | dict):
            raise ConfigError(f"{key}={values}: {element} must be a single value, not a list or a mapping")
        for cls in filter(dataclasses.is_dataclass, types):
            if isinstance(element, dict):
                typed(cls, element, f"{key}[{index}]")  # type: ignore[arg-type]


_type_hints = functools.cache(typing.get_type_hints)


def first_line(error: Exception) -> str:
    """Return the first line of a message."""
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
        return True  # no such module: importing it raises the error
    files = [spec.origin] if spec.origin else list(spec.submodule_search_locations or [])
    return not any(Path(file).resolve().is_relative_to(folder) for file in files for folder in INSTALLED)


def user_code_location(error: Exception) -> str:
    """Return file and line of the user's code that an error came from, in brackets; empty for our code."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        package = str(frame.f_globals["__name__"]).partition(".")[0]
        if package != PACKAGE and is_own(package):
            return f" ({frame.f_code.co_filename}, line {line})"
    return ""


def class_location(cls: object) -> str:
    """Return file and line of a class of the user, in brackets; empty for other classes and objects."""
    if not isinstance(cls, type) or not is_own(cls.__module__.partition(".")[0]):
        return ""
    try:
        return f" ({inspect.getsourcefile(cls)}, line {inspect.getsourcelines(cls)[1]})"
    except (OSError, TypeError):  # defined in a terminal
        return ""


@contextmanager
def user_mistakes(key: str, cls: type[Any]) -> Iterator[None]:
    """Raise an unexpected exception of a class of the user as a ConfigError of one line.

    Those of the project's classes, failed allocations and ``RunError`` are raised as they are.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, RunError) or is_out_of_memory(error):
            raise
        place = user_code_location(error) or class_location(cls)
        if not place or cls.__module__.partition(".")[0] == PACKAGE:
            raise
        lines = str(error).strip().splitlines() or [""]
        raise ConfigError(
            f"{key}={cls.__module__}.{cls.__name__}: {type(error).__name__}: {lines[0]}{place}; DEBUG=1 "
            "adds the traceback"
        ) from error


def load_class(target: str, base: type[T], key: str) -> type[T]:
    """Return the class at a dotted path, which must derive from ``base``. No function is called.

    A configuration, also a stored one, can name classes of the project and of the user. It cannot call a
    function, or import a module of Python or of an installed package.
    """
    target = current_name(target)
    module, _, name = target.rpartition(".")
    if not module or target.startswith("."):
        raise ConfigError(f"{key}._target_={target} is not a dotted path: write package.module.Class")
    top = module.partition(".")[0]
    if top != PACKAGE and not is_own(top):
        raise ConfigError(
            f"{key}._target_={target} is not a {base.__name__} of this project or of yours: {top} belongs to "
            "Python or to an installed package, which are not imported"
        )
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and not f"{module}.".startswith(f"{error.name}."):
            now = current_name(error.name)
            remedy = "which is not installed" if now == error.name else f"which is {now} now"
            raise ConfigError(f"{key}._target_={target}: {module} imports {error.name}, {remedy}") from None
        raise ConfigError(f"{key}._target_={target}: no module {module!r}; is it on PYTHONPATH?") from None
    except Exception as error:
        if top == PACKAGE:
            raise
        raise ConfigError(
            f"{key}._target_={target}: {module} cannot be imported: {type(error).__name__}: {error}"
            f"{user_code_location(error)}"
        ) from error
    cls = getattr(loaded, name, None)
    if cls is None:
        members = vars(loaded).items()
        names = [n for n, member in members if isinstance(member, type) and issubclass(member, base)]
        raise ConfigError(f"{key}._target_={target}: no class {name!r} in {module!r}{nearest(name, names)}")
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise ConfigError(
            f"{key}._target_={target} is not a {base.__name__}{class_location(cls)}: derive it from one of "
            f"the project, as docs/how-to/{key}.md shows"
        )
    return cls


def pop_target(values: dict[str, Any], base: type[Any], key: str, file: str) -> str:
    """Remove ``_target_`` from the values of a YAML file and return it. Raises ConfigError."""
    if "_target_" not in values:
        raise ConfigError(
            f"{key}: {file} has no _target_: add a line `_target_: package.module.Class` with its "
            f"{base.__name__}, as the other files of {key}/ have"
        )
    return str(values.pop("_target_"))


def component(tree: dict[str, Any], key: str, base: type[T]) -> tuple[type[T], Any]:
    """Return the class that a group's YAML names in ``_target_``, and its validated configuration.

    Args:
        tree: a configuration, or the part of one with the group.
        key: the group, for example ``backbone``.
        base: the class it must derive from.

    Raises:
        ConfigError: there is no such class, or a setting does not fit it.
    """
    values = dict(tree[key])
    name = tree.get("names", {}).get(key)
    target = pop_target(values, base, key, f"{key}/{name}.yaml" if name else "the YAML")
    cls = load_class(target, base, key)
    if not hasattr(cls, "Config"):
        raise ConfigError(
            f"{key}._target_={target} has no Config, the dataclass of its settings{class_location(cls)}"
        )
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        raise ConfigError(
            f"{key}._target_={target} lacks {' and '.join(missing)}{class_location(cls)}: define them, as "
            f"docs/how-to/{key}.md shows"
        )
    return cls, typed(cls.Config, values, key)  # type: ignore[attr-defined]
