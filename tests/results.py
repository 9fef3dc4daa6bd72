"""Writes result.json as a run does: with the run's name, the hashes of the files beside it, and its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.tracking.run_folder import RunFolder


def write_result(folder: Path, record: Mapping[str, Any]) -> None:
    """Write a record, which may be an edited one, into a folder ``STUDY/CELL-DIGEST/sSEED``."""
    RunFolder(folder).finish(named(folder, record))


def named(folder: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record without hashes, and with what names its run, by its path where the record does not."""
    cell, _, digest = folder.parent.name.rpartition("-")
    seed = folder.name.removeprefix("s")
    run = {
        "format": 1, "key": RunFolder(folder).key, "study": folder.parents[1].name, "cell": cell,
        "digest": digest, "seed": int(seed) if seed.isdecimal() else 0,
    }  # fmt: skip
    return {**run, **{key: record[key] for key in record if key not in ("files", "checksum")}}
