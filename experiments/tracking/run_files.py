"""Types of the fields in the JSON files of a run folder, for ``experiments.runtime.json_state``.

Only what is read is named here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NotRequired

from typing_extensions import TypedDict

from experiments.runtime.atomic_io import plain
from experiments.runtime.json_state import Number

TOKENIZER = "tokenizer.json"
HASHED = ("config.yaml", "provenance.json", "metrics.jsonl", TOKENIZER)
"""Files whose hashes are in result.json; a run that learned no tokenizer has none."""

FETCHED = "wandb-fetched.json"
"""File of a run that was copied back from W&B, which has no checkpoints."""


class MetricRecord(TypedDict):
    """A score."""

    name: str
    split: str
    value: Number
    standard_error: NotRequired[Number | None]
    items: NotRequired[int]
    clusters: NotRequired[int | None]
    direction: NotRequired[str | None]
    unit: NotRequired[str | None]


class ResumeRecord(TypedDict):
    """Changes of code, data and machine between the sessions of a run."""

    sittings: int
    exact: NotRequired[bool]
    changed: dict[str, Any]
    fallbacks: NotRequired[list[str]]


class FileRecord(TypedDict):
    """Length and hash of a file beside result.json."""

    bytes: int
    sha256: str


class ResultRecord(TypedDict):
    """result.json."""

    format: int
    status: str
    message: NotRequired[str | None]
    study: str
    cell: str
    digest: str
    key: str
    seed: int
    backbone: NotRequired[str | None]
    objective: NotRequired[str | None]
    task: NotRequired[str | None]
    scale: NotRequired[str | None]
    fingerprint: NotRequired[str | None]
    metrics: NotRequired[list[MetricRecord] | None]
    validation: NotRequired[list[MetricRecord] | None]
    references: NotRequired[list[dict[str, Any]] | None]
    training: NotRequired[dict[str, Number | str | None] | None]
    planned: NotRequired[dict[str, Any] | None]
    parameters: NotRequired[dict[str, Number | None] | None]
    matched: NotRequired[dict[str, Any] | None]
    setup: NotRequired[dict[str, Any] | None]
    flops_per_token: NotRequired[Number | None]
    state_bytes_2k: NotRequired[Number | None]
    resume: NotRequired[ResumeRecord | None]
    files: dict[str, FileRecord]
    checksum: str
    finished_at: NotRequired[str | None]


class DataRecord(TypedDict):
    """The data of a run, as provenance.json names it."""

    task: str
    fingerprint: str | None


class ProvenanceRecord(TypedDict):
    """provenance.json."""

    key: str
    data: DataRecord
    versions: dict[str, str]
    device: dict[str, Any]
    git: dict[str, Any]
    kernels: dict[str, Any]
    command: str
    resume: ResumeRecord


class Row(TypedDict):
    """A row of metrics.jsonl."""

    kind: str
    step: int


def file_record(content: bytes) -> FileRecord:
    """Return length and hash of a file's content."""
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def checksum(result: Mapping[str, Any]) -> str:
    """Return the hash of everything else in result.json, 16 hexadecimal digits."""
    rest = {key: plain(value) for key, value in result.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]


def is_intact(result: Mapping[str, Any]) -> bool:
    """Return False where a record is not as it was written."""
    return bool(result["checksum"] == checksum(result))


def damaged_files(result: Mapping[str, Any], contents: Mapping[str, bytes | None]) -> list[str]:
    """Return the names of the files that are not as they were when the run ended.

    Args:
        result: of the run; of one that has not ended it has no hashes.
        contents: by name, of each of ``HASHED``; None where there is no such file. A tokenizer may be missing
            where nobody needs it, as in a run that came from W&B without its weights.
    """
    return [
        name
        for name, expected in (result.get("files") or {}).items()
        if name in contents
        and not (name == TOKENIZER and contents[name] is None)
        and file_record(contents[name] or b"") != expected  # of a run that logged no row there is no file
    ]
