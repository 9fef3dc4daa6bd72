"""Hashes of a file by chunk, so that a part of it can be verified in bounded time."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterable
from pathlib import Path

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
                self._close()

    def _close(self) -> None:
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
