"""Writes the reference of all configuration keys from the dataclasses that define them.

Each key has its type, its default and the docstring of its field. Nothing is repeated by hand, so that the
page cannot fall behind the code.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import typing
from collections import defaultdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from archbench.experiments.cli import COMMANDS
from archbench.experiments.config import CONF
from archbench.experiments.config.options import field_docs
from archbench.experiments.config.sections import Sections
from archbench.experiments.tracking.frame_columns import Json, columns

GROUPS = {"backbone": "Backbones", "objective": "Objectives", "task": "Tasks", "optimizer": "Optimizers"}


def write_reference(folder: Path) -> None:
    """Write all generated pages into a folder, as MyST Markdown."""
    pages = {"run": _sections(), "choices": _choices(), "commands": _commands(), "frame": _frame()}
    for group in GROUPS:
        pages[group] = _parts(group)
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in pages.items():
        (folder / f"{name}.md").write_text("\n".join(lines) + "\n")


def _sections() -> list[str]:
    """Return the keys of the sections that every run has."""
    lines: list[str] = []
    shared: dict[str, type] = {}
    for name, config in typing.get_type_hints(Sections).items():
        if dataclasses.is_dataclass(config) and name != "names":
            lines += [
                f"## {name}",
                "",
                *_summary(typing.cast(type, config)),
                *_keys(typing.cast(type, config), name, shared),
            ]
    return [*lines, *_shared(shared)]


def _parts(group: str) -> list[str]:
    """Return the keys of every class of a group; shared sections are described once, at the end."""
    lines: list[str] = []
    shared: dict[str, type] = {}
    for cls, files in _classes(group).items():
        names = ", ".join(f"`{group}={name}`" for name in files)
        lines += [
            f"## {cls.__name__}",
            "",
            *_summary(cls),
            names,
            "",
            *_keys(getattr(cls, "Config", cls), group, shared),
        ]
    return [*lines, *_shared(shared)]


def _shared(shared: dict[str, type]) -> list[str]:
    """Return the keys of nested dataclasses, and of those that are nested in them."""
    lines: list[str] = []
    done: set[str] = set()
    while left := sorted(set(shared) - done):
        name = left[0]
        done.add(name)
        lines += [f"## {name}", "", *_summary(shared[name]), *_keys(shared[name], "", shared)]
    return lines


def _choices() -> list[str]:
    """Return a table of the groups of ``conf/`` and the names that each offers."""
    lines = ["| group | choices |", "|---|---|"]
    for folder in sorted(path for path in CONF.iterdir() if path.is_dir() and path.name != "hydra"):
        files = sorted(path.relative_to(folder).with_suffix("") for path in folder.rglob("*.yaml"))
        names = [f"`{name}`" for name in files if name.parts[0] != "parts"]
        lines.append(f"| `{folder.name}` | {' '.join(names)} |")
    return [*lines, ""]


def _commands() -> list[str]:
    """Return the tables of the commands."""
    lines = []
    for heading, commands in COMMANDS.items():
        lines += [f"## {heading}", "", "| command | module | does |", "|---|---|---|"]
        lines += [f"| `{name}` | `{module}` | {line} |" for name, (module, line) in commands.items()]
        lines.append("")
    return lines


def _frame() -> list[str]:
    """Return a table of the columns of the results frame."""
    lines = ["| column | holds | meaning |", "|---|---|---|"]
    for name, column in columns().items():
        kind = "JSON text" if isinstance(column.kind, Json) else column.kind
        meaning = field_docs(column.model).get(column.field, "").replace("|", "\\|").replace("``", "`")
        lines.append(f"| `{name}` | {kind} | {meaning} |")
    return lines


def _summary(cls: type) -> list[str]:
    """Return the first sentence of a class's docstring."""
    text = inspect.getdoc(cls)
    return [_myst(" ".join(text.split("\n\n")[0].split())), ""] if text else []


def _keys(config: type, prefix: str, shared: dict[str, type]) -> list[str]:
    """Return a definition for each key; nested dataclasses are added to ``shared``."""
    types, docs = typing.get_type_hints(config), field_docs(config)
    lines: list[str] = []
    for field in dataclasses.fields(config):
        key = f"{prefix}.{field.name}" if prefix else field.name
        kind = types[field.name]
        nested = [t for t in (kind, *typing.get_args(kind)) if dataclasses.is_dataclass(t)]
        if nested:
            inner = typing.cast(type, nested[0])
            shared[inner.__name__] = inner
            lines += [f"`{key}.*`: see [{inner.__name__}](#{inner.__name__.lower()})"]
        else:
            named = kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)
            lines += [f"`{key}`: *{named.replace('typing.', '')}*{_default(field)}"]
        lines += [f":   {_myst(docs.get(field.name, '')) or '-'}", ""]
    return lines


def _default(field: dataclasses.Field[Any]) -> str:
    """Return the default as it is typed on a command line."""
    if field.default is not dataclasses.MISSING:
        value = field.default
    elif field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    else:
        return ", no default"
    if value == "???":
        return ", no default"
    shown = (
        {None: "null", True: "true", False: "false"}.get(value) if isinstance(value, bool | None) else value
    )
    return f", default `{shown}`" if shown != "" else ", empty by default"


def _myst(text: str) -> str:
    """Turn the double backticks of docstrings into Markdown's single ones."""
    return text.replace("``", "`").replace("<", "\\<")


def _classes(group: str) -> dict[type, list[str]]:
    """Return the YAML files of a group by the class they name, in the order of class names."""
    found: dict[type, list[str]] = defaultdict(list)
    for path in sorted((CONF / group).glob("*.yaml")):
        target = _target(group, path.stem)
        if target:
            module, _, name = target.rpartition(".")
            found[getattr(importlib.import_module(module), name)].append(path.stem)
    return dict(sorted(found.items(), key=lambda item: item[0].__name__))


def _target(group: str, name: str) -> str | None:
    """Return the class that a YAML names, itself or by one of its defaults."""
    path = CONF / group / f"{name}.yaml"
    if not path.exists():
        return None
    yaml = OmegaConf.load(path)
    assert isinstance(yaml, DictConfig)
    for key in ("_target_", f"{group}._target_"):
        if target := OmegaConf.select(yaml, key):
            return str(target)
    for default in yaml.get("defaults", []):
        if isinstance(default, str) and default != "_self_" and (target := _target(group, default)):
            return target
    return None
