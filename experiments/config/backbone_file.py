"""``backbone=FILE.py:CLASS`` on a command line: a class of the user's file, by its dotted path."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path

from archbench.experiments.config import CONF
from archbench.experiments.config.old_names import current_name
from archbench.experiments.runtime.errors import ConfigError, nearest
from archbench.experiments.runtime.imported_sources import PACKAGE

_FILE = re.compile(r"([^,]+\.py)(?::(\w*))?")


def class_paths(value: str) -> str:
    """Return the values of ``backbone=`` with each ``FILE.py:CLASS`` among them as ``MODULE.CLASS``.

    Raises ConfigError if there is no such file or class, or Python imports no module from the file.
    """
    for word in value.split(","):
        file, _, name = word.rpartition(":")
        others = [Path(file), Path(f"{file}.py")] if file and not file.endswith(".py") else []
        if any(path.expanduser().is_file() for path in others):
            raise ConfigError(f"backbone={word}: {file} is no Python file: write FILE.py:{name}")
    return _FILE.sub(lambda match: _class_path(match[0], match[1], match[2] or ""), value)


def _class_path(word: str, file: str, name: str) -> str:
    path, key = Path(file).expanduser(), f"backbone={word}"
    if path.exists() and not path.is_file():
        raise ConfigError(f"{key}: {path} is not a file, but a folder, a pipe or a device")
    if not path.is_file():
        files = [other.name for other in path.parent.glob("*.py")]
        raise ConfigError(f"{key}: there is no file {path}{nearest(path.name, files)}")
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise ConfigError(f"{key}: line {error.lineno}: {error.msg}") from None
    if path.stem == PACKAGE:
        raise ConfigError(f"{key}: rename {path.name}: it has the name of this package")
    if not path.stem.isidentifier():
        raise ConfigError(
            f"{key}: rename {path.name}: Python imports a name of letters, digits and underscores"
        )
    classes = [statement.name for statement in tree.body if isinstance(statement, ast.ClassDef)]
    if not name:
        raise ConfigError(f"{key}: add the class, {file}:CLASS; options: {', '.join(classes) or 'none'}")
    if name not in classes:
        raise ConfigError(f"{key}: no class {name!r} in {path}{nearest(name, classes)}")
    return f"{_module(path.resolve(), key)}.{name}"


def _module(path: Path, key: str) -> str:
    """Return the dotted name by which Python imports a file."""
    if path.is_relative_to(CONF.parent):
        name = current_name(".".join(path.relative_to(CONF.parent).with_suffix("").parts))
        if name.startswith(PACKAGE):
            return name
    folders = {Path(folder).resolve() for folder in sys.path}
    # The nearest first: looking for a module of a package imports the package.
    for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
        if not path.is_relative_to(folder):
            continue
        module = ".".join(path.relative_to(folder).with_suffix("").parts)
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            continue
        if spec is not None and spec.origin is not None and Path(spec.origin).resolve() == path:
            return module
    raise ConfigError(
        f"{key}: Python does not import {path.stem} from this file: set PYTHONPATH={path.parent}, or rename "
        "the file where another module has its name"
    )
