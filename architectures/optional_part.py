"""The parts of this package that may be deleted: ``kernels`` and ``pretrained``.

Nothing else imports them. What they add is asked for here, by the name of a module.
"""

from __future__ import annotations

import importlib
from types import ModuleType


def optional_module(name: str) -> ModuleType | None:
    """Return a module of this package by its dotted name in it; None where its part was deleted."""
    full = f"{__package__}.{name}"
    try:
        module = importlib.import_module(full)
    except ModuleNotFoundError as error:
        if not f"{full}.".startswith(f"{error.name}."):  # a package that the module needs is missing
            raise
        return None
    return None if module.__file__ is None else module  # a folder that is left without its files has none
