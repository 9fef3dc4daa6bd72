"""Records of what runs are to decide: YAML files, each of one dataclass, and the rule that decides them.

A claim, a published result and a prediction are records. Each is committed before its runs, and names them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from archbench.analysis.declared.frames import Frames
from archbench.experiments.config.structured import typed
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.runtime.yaml_state import read_yaml

T = TypeVar("T")
Decision = TypeVar("Decision")

UNDECIDED, NOT_RUN = "undecided", "not run"
"""Verdicts that every kind of record can have."""


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


def decisions(
    records: Mapping[str, T], rule: Callable[[str, T, Frames], Decision], frames: Frames
) -> list[Decision]:
    """Return the decision on each record, in their order.

    Args:
        records: by name, from ``read_records``.
        rule: returns the decision on a record with a name, by the runs that it names.
        frames: the runs.

    Raises:
        DataError: the runs of a record cannot be read or chosen; the message has its name.
    """
    found = []
    for name, record in records.items():
        try:
            found.append(rule(name, record, frames))
        except ValueError as error:
            raise DataError(f"{name}: {error}") from None
    return found
