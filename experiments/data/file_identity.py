"""Identity of source files by their content. Hashes of large files are cached next to the tokens."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from experiments.data.chunk_hashes import file_hash
from experiments.runtime.atomic_io import write_json
from experiments.runtime.errors import DataError, RunError
from experiments.runtime.json_state import read_json

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
