"""Cache what was read of a study's run folders, so that only new and changed ones are read again.

The cache is ``runs/STUDY/.frame``: a checksum, then a Parquet file with one row for each run:

    run     the folder inside the study, ``CELL-DIGEST/sSEED``
    files   size, times and inode of each file that was read
    row     the columns of ``analysis.load.study``, JSON text
    kind    of each point of the curves, a list
    curve_* values of each point, lists of the same length; null where the run has no such key

A run is taken from it only while its files are unchanged, and while the code that read them is the same.
A cache that cannot be read, or has changed since it was written, is rebuilt; if it cannot be written,
everything is read each time.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import multiprocessing
import os
import struct
import sys
import time
import zlib
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from archbench.analysis.files import write
from archbench.analysis.load import run_config, run_record
from archbench.analysis.load.run_record import FILES, read_run
from archbench.experiments.runtime import json_state, yaml_state
from archbench.experiments.tasks import metrics
from archbench.experiments.tracking import frame_columns, run_files, run_folder

NAME = ".frame"
CHECKSUM = struct.Struct("<I")
"""CRC-32 of what follows it: Parquet's own leave out the headers of pages and the description of the file."""
CURVE = "curve_"
SOURCES = (
    __file__, run_record.__file__, run_config.__file__, run_files.__file__, frame_columns.__file__,
    metrics.__file__, json_state.__file__, yaml_state.__file__, run_folder.__file__,
)  # fmt: skip
CODE = hashlib.sha256(b"".join(Path(source).read_bytes() for source in SOURCES)).hexdigest()
"""Hash of the code that made the rows."""
SETTLED = 2 * 10**9
"""Nanoseconds. A file changed later than so long ago may change again without a change of its times, as those
of some file systems are this coarse; a run with such a file is not kept."""
CHUNK = 500
"""Runs whose points are Python objects at a time."""


def read_runs(root: Path, names: list[str], *, curves: bool) -> pa.Table:
    """Return the rows of the cache for some runs of a study, in the order of ``names``; reads missing ones.

    Args:
        root: the folder of the study.
        names: of the runs, each a folder inside ``root``.
        curves: whether to return the points, too.

    Raises:
        ValueError: ``study.solved`` of a run is no accuracy.
    """
    now, path = time.time_ns(), root / NAME
    files = {name: _files(root / name) for name in names}
    try:
        table = _cached(path, {name: text for name, (text, _) in files.items()}, curves)
    except (OSError, ValueError, KeyError, pa.ArrowException):
        table = None
    cached = set(table["run"].to_pylist()) if table is not None else set()
    missing = [name for name in names if name not in cached]
    if missing:
        parts = _read_chunks(root, {name: files[name][0] for name in missing})
        table = pa.concat_tables([*([] if table is None else [table]), *parts], promote_options="default")
        settled = {name for name in names if files[name][1] < now - SETTLED}
        if settled & set(missing):
            keep = table.filter(pa.array([name in settled for name in table["run"].to_pylist()]))
            buffer = io.BytesIO()  # without a dictionary, as values hardly repeat
            keep = keep.replace_schema_metadata({"code": CODE})
            pq.write_table(keep, buffer, use_dictionary=["kind"], compression="zstd")
            content = buffer.getvalue()
            with contextlib.suppress(OSError):  # such as a folder that is read-only
                write(path, CHECKSUM.pack(zlib.crc32(content)) + content)
    assert table is not None
    index = {name: i for i, name in enumerate(table["run"].to_pylist())}
    return table.take([index[name] for name in names])


def _files(folder: Path) -> tuple[str, int]:
    """Return a fingerprint of the files of a run, and the nanosecond at which the last changed."""
    prints, latest = [], 0
    for name in FILES:
        try:
            stat = os.stat(f"{folder}/{name}")
        except OSError:  # also of a link that leads to itself
            prints.append("none")
            continue
        prints.append(f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}")
        latest = max(latest, stat.st_mtime_ns)
    return ", ".join(prints), latest


def _cached(path: Path, files: dict[str, str], curves: bool) -> pa.Table | None:
    """Return the rows of the unchanged runs; without points if all are unchanged and ``curves`` is False.

    None for a cache that other code wrote. Raises what pyarrow does for a file that is no cache.
    """
    content = path.read_bytes()
    start = CHECKSUM.size
    if content[:start] != CHECKSUM.pack(zlib.crc32(memoryview(content)[start:])):
        return None
    with pq.ParquetFile(pa.BufferReader(pa.py_buffer(content).slice(start))) as cache:
        if (cache.schema_arrow.metadata or {}).get(b"code") != CODE.encode():
            return None
        cached = cache.read(columns=["run", "files"]).to_pydict()
        same = [i for i, run in enumerate(cached["run"]) if files.get(run) == cached["files"][i]]
        whole = len(same) == len(files)
        table = cache.read(columns=["run", "row"] if whole and not curves else None)
    return table.take(pa.array(same, pa.int64()))


def _read_chunks(root: Path, files: dict[str, str]) -> list[pa.Table]:
    """Read runs from their folders, on Linux by as many processes as there are processors.

    Elsewhere a process cannot be forked safely, and a spawned one imports the script of the user again.
    """
    names = list(files)
    chunks = [names[i : i + CHUNK] for i in range(0, len(names), CHUNK)]
    read = functools.partial(_read, root)
    prints = [[files[name] for name in chunk] for chunk in chunks]
    processors = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    if min(processors, len(chunks)) == 1:
        return list(map(read, chunks, prints))
    with ProcessPoolExecutor(min(processors, len(chunks)), multiprocessing.get_context("fork")) as pool:
        return list(pool.map(read, chunks, prints))


def _read(root: Path, names: list[str], files: list[str]) -> pa.Table:
    """Read some runs from their folders.

    Args:
        root: the folder of the study.
        names: of the runs.
        files: the fingerprint of the files of each.
    """
    records = [read_run(root / name) for name in names]
    numbers, keys = pa.list_(pa.float64()), sorted({key for record in records for key in record.points})
    return pa.table(
        {
            "run": pa.array(names, pa.string()),
            "files": pa.array(files, pa.string()),
            "row": pa.array([json.dumps(record.row) for record in records], pa.string()),
            "kind": pa.array([record.kinds for record in records], pa.list_(pa.string())),
            **{CURVE + key: pa.array([r.points.get(key) for r in records], numbers) for key in keys},
        }
    )
