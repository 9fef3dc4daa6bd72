"""Files that are no files: a pipe or a socket in the place of a file would let a command wait for ever."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from archbench.experiments.runtime.errors import DataError

ENDLESS = ("/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
"""Devices that can be read without an end."""
FILE_SUFFIXES = (".json", ".jsonl", ".yaml", ".log", ".safetensors", ".bin")
"""Ends of the names of files that commands write."""
_installed = False


def refuse_pipes() -> None:
    """Let opening a named pipe, or a link to an endless device, raise OSError from now on.

    Python opens the files of a command in many places. Descriptors of the process stay: the shell passes
    ``<(...)`` by them. Libraries in C and Rust open files on their own: call ``check_file`` before.
    """
    global _installed
    if not _installed:
        _installed = True
        sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not isinstance(arguments[0], str | bytes):
        return
    path = os.fsdecode(arguments[0])
    if path.startswith(("/dev/", "/proc/")):
        return
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # what opens it says so
        return
    if (kind := _kind(path, mode)) is not None:
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", path)


def _kind(path: str, mode: int) -> str | None:
    if stat.S_ISFIFO(mode):
        return "a pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    if stat.S_ISCHR(mode) and os.path.realpath(path) in ENDLESS:
        return "an endless device"
    return None


def wrong_kinds(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield what is no file and no folder below a folder, and folders with the name of a file; with its kind.

    A link counts as what it leads to, and one that leads nowhere is left out: its file is missing.
    """
    for folder, folders, files in os.walk(root):
        for name in sorted([*folders, *files]):
            path = Path(folder, name)
            try:
                mode = os.stat(path).st_mode
            except (OSError, ValueError):
                continue
            is_file_name = path.suffix in FILE_SUFFIXES and not name.startswith(".")
            if stat.S_ISDIR(mode) and is_file_name:
                yield path, "a folder"
            elif not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
                yield path, _kind(str(path), mode) or "a device"


def check_file(path: str | os.PathLike[str]) -> None:
    """Raise DataError if a path is there and is not a file, before a library opens it."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else _kind(os.fspath(path), mode) or "a device"
        raise DataError(f"{path} cannot be read: it is {kind}; name a file")
