"""Fixture that the fault tests share: the record behind tests/faults/recorded.csv."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

Record = Callable[..., None]


@pytest.fixture
def record() -> Record:
    """Notes what was injected and what happened: a line of JSON in the file ``FAULT_RECORD`` names."""

    def note(fault: str, injected: str, count: int, happened: str) -> None:
        path = os.environ.get("FAULT_RECORD")
        if path:
            row = {"fault": fault, "injected": injected, "count": count, "happened": happened}
            with Path(path).open("a") as file:
                file.write(json.dumps(row) + "\n")

    return note
