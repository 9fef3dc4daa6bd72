"""Files written in one piece, and values as JSON can hold them."""

from __future__ import annotations

import json
import math
import os
import uuid
from pathlib import Path
from typing import Any

NOT_FINITE = ("nan", "inf", "-inf")
"""Strings that ``plain`` puts in place of floats that JSON cannot hold."""


def plain(value: Any) -> Any:
    """Return ``value`` with floats that JSON cannot hold turned into strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def write_text(path: Path, text: str) -> None:
    """Write text atomically, as UTF-8."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: a reader, or a crash, finds the old file or the new one, never a part."""
    temporary = unique_name(path)
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def unique_name(path: Path) -> Path:
    """Return a temporary name next to a file. Other machines may write there, with equal process ids."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")


def write_json(path: Path, tree: Any) -> None:
    write_text(path, json.dumps(plain(tree), indent=1, allow_nan=False) + "\n")


def allowed_mode() -> int:
    """Return the permissions of new folders: all that the umask allows."""
    os.umask(mask := os.umask(0o077))
    return 0o777 & ~mask


def share(path: Path) -> None:
    """Give a file the permissions that the umask allows; libraries make theirs readable to the owner only."""
    path.chmod(0o666 & allowed_mode())


def sync(path: Path) -> None:
    """Wait until a file or a folder is on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
