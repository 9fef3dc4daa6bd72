"""Disk space for prepared data: the space that it needs, and removal of interrupted preparations.

A preparation writes into a hidden folder next to its destination, with a file that names its process. The
next one removes the folders of processes of its machine that have ended. A folder of another machine is
removed if nothing was written for a week: a file lock would not show whether its process lives, as it may be
visible on one machine only.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from archbench.experiments.data.local_files import parquet_bytes
from archbench.experiments.runtime.atomic_io import write_json
from archbench.experiments.runtime.console import count
from archbench.experiments.runtime.errors import CheckpointError
from archbench.experiments.runtime.process_identity import is_alive, is_local, read_process, this_process

LOCK = ".preparing"
ABANDONED = 7 * 24 * 3600.0
"""Seconds without a write after which a folder of another machine, or of an unknown process, is left over."""
WORK = re.compile(r"\.{1,2}[0-9a-f]{16}(\.parts)?-\w+")
"""Names of the folders of preparations. A cache may be next to other hidden folders."""


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
    """Create a hidden folder next to ``destination`` that names this process.

    It is removed at the end, unless it was renamed. Folders of killed preparations are removed first.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(destination.parent)
    work = Path(tempfile.mkdtemp(prefix=f".{destination.name}-", dir=destination.parent))
    try:
        write_json(work / LOCK, this_process())
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def remove_leftovers(cache: Path) -> None:
    """Remove the hidden folders that killed preparations left. Folders in use are preserved."""
    for work in cache.glob(".*-*/"):
        with suppress(OSError):  # it is gone, or belongs to another user
            if WORK.fullmatch(work.name) and _is_abandoned(work):
                shutil.rmtree(work, ignore_errors=True)


def _is_abandoned(work: Path) -> bool:
    process = read_process(work / LOCK)
    if process is not None and is_local(process):
        return not is_alive(process)
    written = max(path.lstat().st_mtime for path in [work, *work.iterdir()])
    with tempfile.TemporaryFile(dir=work.parent) as probe:  # by the clock of the file system
        return os.fstat(probe.fileno()).st_mtime - written > ABANDONED
