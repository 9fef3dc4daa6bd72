"""Dotted paths of earlier versions, whose packages were not yet part of ``archbench``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from archbench.experiments.runtime.imported_sources import PACKAGE

_ROOT = Path(__file__).resolve().parents[2]
"""Folder of the subpackages."""
_PACKAGES = ("architectures", "experiments")
"""Packages of earlier versions that a configuration may name."""
CODE = frozenset(_PACKAGES)
"""Packages of earlier versions in the ``code`` of a run's provenance."""


def current_name(target: str) -> str:
    """Return the dotted path of a class or module of this project as it is now; others are returned as given.

    A user may have a module ``experiments`` too: a path is an old one if the project has its module.
    """
    top, *parts = target.split(".")
    if top not in _PACKAGES:
        return target
    users = [folder for path in sys.path if (folder := Path(path or os.curdir).resolve()) != _ROOT]
    for module in filter(None, (parts, parts[:-1])):
        if any(_is_module(folder.joinpath(top, *module)) for folder in users):
            return target
        if _is_module(_ROOT.joinpath(top, *module)):
            return f"{PACKAGE}.{target}"
    return target


def _is_module(path: Path) -> bool:
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def user_code(code: dict[str, str]) -> dict[str, str]:
    """Return the modules of the user among the hashes of ``code_hashes``, also of an earlier version."""
    is_current = any(name.startswith(f"{PACKAGE}.") for name in code)
    own = {name for name in code if name.startswith(f"{PACKAGE}.")} if is_current else CODE
    return {name: digest for name, digest in code.items() if name not in own}
