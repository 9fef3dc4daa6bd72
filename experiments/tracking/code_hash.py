"""Hash of the code that a run imports: the harness's packages and the user's modules, with or without git."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from experiments.config.structured import PROJECT, is_own

SUFFIXES = (".py", ".cpp", ".h")
"""Source files of a package."""


def code_hash(modules: Iterable[str] = ()) -> str:
    """Return 16 hexadecimal digits of the source of ``PROJECT``, of some modules, and of what these import.

    Asked once for each set of modules: a process goes on with the code that it imported, whatever becomes of
    the files.

    Args:
        modules: dotted names, of the user's too. Modules of Python and of installed packages do not count:
            the versions of packages are recorded.
    """
    return _hash(tuple(sorted({name.partition(".")[0] for name in modules} - set(PROJECT))))


@functools.cache
def _hash(tops: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for top in [*PROJECT, *sorted(_imported(tops))]:
        for name, path in _sources(top):
            digest.update(f"{top}/{name}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _imported(tops: Iterable[str]) -> set[str]:
    """Return the top-level modules of the user's among some, and those that they have imported."""
    found: set[str] = set()
    waiting = {top for top in tops if top in sys.modules and is_own(top)}
    while waiting:
        found |= waiting
        used = {name for top in waiting for name in _used(top)}
        waiting = {name for name in used - found - set(PROJECT) if name in sys.modules and is_own(name)}
    return found


def _used(top: str) -> set[str]:
    """Return the top-level names of the modules that a package's own modules refer to."""
    own = [m for name, m in list(sys.modules.items()) if name == top or name.startswith(f"{top}.")]
    found = set()
    for module in own:
        for value in list(vars(module).values()) if isinstance(module, ModuleType) else []:
            name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            if isinstance(name, str):
                found.add(name.partition(".")[0])
    return found


def _sources(top: str) -> list[tuple[str, Path]]:
    """Return name and path of each source file of a top-level module, in order."""
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # __main__ has none
        return []
    if spec is None:
        return []
    if not spec.submodule_search_locations:
        return [(Path(spec.origin).name, Path(spec.origin))] if spec.origin else []
    return [
        (path.relative_to(folder).as_posix(), path)
        for folder in sorted(spec.submodule_search_locations)
        for path in sorted(Path(folder).rglob("*"))
        if path.suffix in SUFFIXES and path.is_file()
    ]
