"""Hash of the code that a run imports: the harness's packages and the user's modules, with or without git."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import json
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from experiments.config.structured import PROJECT, is_own

SUFFIXES = (".py", ".cpp", ".h")
"""Source files of a package."""


def code_hashes(modules: Iterable[str] = ()) -> dict[str, str]:
    """Return a hash of the source of each package of ``PROJECT``, of some modules, and of what these import.

    The key is the name of the package or module, the hash has 16 hexadecimal digits. Each is asked once: a
    process goes on with the code that it imported, whatever becomes of the files.

    Args:
        modules: dotted names, of the user's too. Modules of Python and of installed packages do not count:
            the versions of packages are recorded.
    """
    own = _imported({name.partition(".")[0] for name in modules} - set(PROJECT))
    return {top: _hash(top) for top in [*PROJECT, *sorted(own)]}


def code_hash(hashes: Mapping[str, str]) -> str:
    """Return one hash of all the code: 16 hexadecimal digits of what ``code_hashes`` returns."""
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()[:16]


def changed_code(recorded: Mapping[str, str], modules: Iterable[str]) -> list[str]:
    """Return the packages and modules that differ from what a run recorded; none where it recorded none.

    Args:
        recorded: ``code`` of its provenance.
        modules: as for ``code_hashes``.
    """
    now = code_hashes(modules)
    return [name for name, digest in now.items() if recorded and recorded.get(name) != digest]


def used_packages(modules: Iterable[str]) -> set[str]:
    """Return the distributions that a user's modules, and those of the user's that they import, need."""
    own = _imported({name.partition(".")[0] for name in modules} - set(PROJECT))
    if not own:
        return set()
    brought_by = metadata.packages_distributions()  # reads what is installed: a second
    # Without this project: its code is hashed, and only some of the runs that it computes would record it.
    used = {module for top in own for module in used_modules(top)} - set(PROJECT)
    return {name for module in used for name in brought_by.get(module, ())}


@functools.cache
def _hash(top: str) -> str:
    digest = hashlib.sha256()
    for name, path in _sources(top):
        digest.update(f"{top}/{name}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _imported(tops: Iterable[str]) -> set[str]:
    """Return the top-level modules of the user's among some, and those that their source imports."""
    found: set[str] = set()
    waiting = {top for top in tops if is_own(top)}
    while waiting:
        found |= waiting
        waiting = {name for top in waiting for name in used_modules(top)} - found - set(PROJECT)
        waiting = {name for name in waiting if is_own(name)}
    return found


def used_modules(top: str) -> set[str]:
    """Return the top-level names that a package's source imports, also inside of functions.

    The source is read, not the modules in memory: there a number that was imported has forgotten from where.
    """
    found = set()
    for name, path in _sources(top):
        try:
            tree = ast.parse(path.read_bytes()) if name.endswith(".py") else ast.Module([], [])
        except (SyntaxError, ValueError):  # a file that nobody imports
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.add(node.module.partition(".")[0])
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
