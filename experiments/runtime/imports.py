"""Imports at the start of a command: of the project from one folder, and of large libraries."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path

from experiments.runtime.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
"""Folder that this package is imported from: a checkout, or that of the installation."""


def check_one_root(packages: Sequence[str] = ("architectures",)) -> None:
    """Refuse to import packages of the project from two folders, which would mix two versions of it.

    The current folder is searched first: in another checkout than the one that a command is installed from,
    it has some of the packages. Raises ConfigError.
    """
    for name in packages:
        # What the search finds now, whatever was imported before the current folder was searched.
        spec = PathFinder.find_spec(name)
        if spec is None or spec.origin is None:  # a plain folder of that name, or an editable installation
            spec = importlib.util.find_spec(name)
        root = Path(spec.origin).resolve().parents[1] if spec is not None and spec.origin else Path.cwd()
        if root != ROOT:
            raise ConfigError(
                f"experiments is imported from {ROOT}, {name} from {root}: two versions of the code must not "
                "mix: leave the current folder, or use the environment that its checkout is installed in"
            )


@contextmanager
def uncollected() -> Iterator[None]:
    """Search for no garbage within: imports leave hardly any, and it takes a tenth of PyTorch's import."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
