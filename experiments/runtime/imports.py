"""Imports at the start of a command: of the project from one folder, and of large libraries."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from experiments.runtime.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
"""Folder that this package is imported from: a checkout, or that of the installation."""


def check_one_root() -> None:
    """Refuse to run where the project could come from two folders, which would mix two versions of it.

    That is a folder of ``PYTHONPATH`` with another ``architectures``, or another checkout as the current
    folder: its user expects that code to run, but a command runs the code that it is installed from. Raises
    ConfigError.
    """
    spec = importlib.util.find_spec("architectures")
    roots = [Path(spec.origin).resolve().parents[1]] if spec is not None and spec.origin else []
    if Path("architectures", "__init__.py").exists():
        roots.append(Path.cwd().resolve())
    for root in roots:
        if root != ROOT:
            raise ConfigError(
                f"experiments is imported from {ROOT}, but there is another architectures in {root}: two "
                "versions of the code must not mix: leave the current folder, or use the environment that "
                "its checkout is installed in"
            )


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection in the block: it is a tenth of the time of importing PyTorch."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
