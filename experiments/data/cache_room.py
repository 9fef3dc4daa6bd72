"""Disk space for prepared data: the space that it needs, and removal of interrupted preparations.

A preparation writes into a hidden folder next to its destination and holds a lock in it. The system releases
the lock of a process that dies, so the next preparation can tell abandoned folders from those in use.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from experiments.data.local_files import parquet_bytes
from experiments.runtime.console import count
from experiments.runtime.errors import CheckpointError

LOCK = ".preparing"
ABANDONED = 24 * 3600.0
"""Seconds after which a hidden folder that has no lock yet is left over."""


def check_room(folder: Path, needed: int, description: str) -> None:
    """Raise CheckpointError, with both sizes, if fewer than ``needed`` bytes are free."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise CheckpointError(
            f"{folder}: {description} takes about {count(needed)}B, and {count(free)}B are free: "
            "free some space, or choose another disk with task.cache_dir="
        )


def text_bytes(paths: Sequence[Path], column: str) -> int:
    """Return the bytes of text in plain and Parquet files; of the latter from their first rows.

    Rows of JSON are left out: they may hold much besides their text.
    """
    plain = sum(path.stat().st_size for path in paths if path.suffix in (".txt", ".md"))
    parquet = [path for path in paths if path.suffix == ".parquet"]
    return plain + sum(parquet_bytes(path, column) for path in parquet)


@contextmanager
def work_folder(destination: Path) -> Iterator[Path]:
    """Create a hidden folder next to ``destination``, locked until it is published or the block ends.

    It is removed at the end, unless it was renamed. Folders of killed preparations are removed first.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(destination.parent)
    work = Path(tempfile.mkdtemp(prefix=f".{destination.name}-", dir=destination.parent))
    try:
        new = work / f"{LOCK}.new"
        with new.open("w") as lock:
            _lock(lock.fileno())
            new.rename(work / LOCK)  # once it is held: other processes remove folders with a free lock
            yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def remove_leftovers(cache: Path) -> None:
    """Remove the hidden folders that killed preparations left. Folders in use are preserved."""
    for work in cache.glob(".*-*/"):
        try:
            if (work / LOCK).exists():
                with (work / LOCK).open("r+b") as lock:
                    abandoned = _lock(lock.fileno())
            else:
                abandoned = time.time() - work.stat().st_mtime > ABANDONED
        except OSError:  # it is gone, or belongs to another user
            continue
        if abandoned:
            shutil.rmtree(work, ignore_errors=True)


def _lock(descriptor: int) -> bool:
    """Lock a file; return False where another process has it, or where files cannot be locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
