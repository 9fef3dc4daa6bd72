"""Records of claims and published numbers: YAML files, each of one dataclass."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from archbench.experiments.config.structured import typed
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.runtime.yaml_state import read_yaml

T = TypeVar("T")


def read_records(folder: Path, cls: type[T]) -> dict[str, T]:
    """Return all records of a folder by the names of their files. Raises DataError."""
    if not folder.is_dir():
        raise DataError(f"{folder}/: there is no such folder; run from the root of the checkout")
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise DataError(f"{folder}/ holds no *.yaml; name a folder of records")
    return {path.stem: read_record(path, cls) for path in paths}


def read_record(path: Path, cls: type[T]) -> T:
    """Return one record, checked. Raises DataError naming the file."""
    values = read_yaml(path, "write key: value", DataError)
    try:
        return typed(cls, values, "")
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
