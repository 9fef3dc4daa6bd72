"""Hashes of files: by chunk, so that a part can be verified in bounded time, and cached for large sources."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from archbench.experiments.runtime.atomic_io import write_json
from archbench.experiments.runtime.errors import DataError, RunError
from archbench.experiments.runtime.json_state import read_json

CHUNK = 2**20
"""Bytes of a chunk."""
SAMPLE = 48
"""Chunks that are verified when a file is opened; a file of no more is verified wholly."""
DIGITS = 16
"""Hexadecimal digits stored of a hash."""


class ChunkHasher:
    """Hashes what is written to a file, wholly and by chunk."""

    def __init__(self) -> None:
        self._whole, self._chunk = hashlib.sha256(), hashlib.sha256()
        self._length = 0
        self._chunks: list[str] = []

    def update(self, data: bytes) -> None:
        """Add what was written."""
        self._whole.update(data)
        view = memoryview(data)
        while len(view):
            part = view[: CHUNK - self._length]
            self._chunk.update(part)
            self._length += len(part)
            view = view[len(part) :]
            if self._length == CHUNK:
                self._chunks.append(self._chunk.hexdigest()[:DIGITS])
                self._chunk, self._length = hashlib.sha256(), 0

    @property
    def whole(self) -> str:
        """Return the hash of everything, 64 hexadecimal digits."""
        return self._whole.hexdigest()

    @property
    def chunks(self) -> list[str]:
        """Return the hashes of all chunks, the last one of the remaining bytes."""
        rest = [self._chunk.hexdigest()[:DIGITS]] if self._length else []
        return [*self._chunks, *rest]


def sampled(count: int, most: int = SAMPLE) -> list[int]:
    """Return the chunks to verify: the first, the last, and a random choice; all where few."""
    if count <= most:
        return list(range(count))
    others = random.SystemRandom().sample(range(1, count - 1), most - 2)
    return sorted({0, count - 1, *others})


def damaged(path: Path, hashes: list[str], places: Iterable[int]) -> str | None:
    """Return the byte range of a changed chunk among ``places``; None if none changed. Raises OSError."""
    with path.open("rb") as file:
        for index in places:
            file.seek(index * CHUNK)
            actual = hashlib.sha256(file.read(CHUNK)).hexdigest()[:DIGITS]
            if actual != hashes[index]:
                return f"bytes {index * CHUNK} to {min((index + 1) * CHUNK, os.fstat(file.fileno()).st_size)}"
    return None


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file, 64 hexadecimal digits. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


NAME = ".source-hashes.json"
LARGE = 2**24
"""Bytes from which the hash of a file is cached. Smaller files are hashed each time."""
SETTLED = 2 * 10**9
"""Nanoseconds. A file that changed later than so long ago may change again within one tick of its clock."""


class FileHashes:
    """Content hashes of files. Those of large files come from a cache while the files are unchanged.

    A file is unchanged if its size, inode, modification time and inode change time (ctime) are. Only the
    kernel sets the ctime, so that restoring the other three does not hide a change.
    """

    def __init__(self, cache: Path | None) -> None:
        """``cache``: the folder in which hashes are cached; None caches none."""
        self._path = cache / NAME if cache is not None else None
        self._known: dict[str, list[Any]] | None = None
        self._added = False

    def of(self, path: Path) -> str:
        """Return the SHA-256 of a file. Raises DataError where it cannot be read."""
        try:
            stat = path.stat()
            if self._path is None or stat.st_size < LARGE:
                return file_hash(path)
            state = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
            name = str(path.absolute())
            cached = self._kept().get(name)
            if cached is not None and cached[:4] == state:
                return str(cached[4])
            hashed = file_hash(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error})") from error
        if stat.st_ctime_ns < time.time_ns() - SETTLED:
            self._kept()[name] = [*state, hashed]
            self._added = True
        return hashed

    def keep(self) -> None:
        """Write the cache, where that can be done."""
        if self._path is not None and self._added:
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_json(self._path, self._known)

    def _kept(self) -> dict[str, list[Any]]:
        if self._known is None:
            assert self._path is not None
            try:
                stored = read_json(self._path, dict[str, list[Any]]) or {}
            except RunError:  # it is written again
                stored = {}
            self._known = {name: state for name, state in stored.items() if len(state) == 5}
        return self._known
