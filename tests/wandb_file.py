"""Reads the records of a ``.wandb`` file: a LevelDB log of protobuf messages."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
BLOCK, HEADER = 32768, 7


def records(path: Path) -> list[Any]:
    """Every complete record, in the order written; a tail cut off by a kill is left out."""
    parsed = []
    for payload in _payloads(path.read_bytes()):
        record = Record()
        record.ParseFromString(payload)
        parsed.append(record)
    return parsed


def _payloads(data: bytes) -> Iterator[bytes]:
    if len(data) < HEADER:
        return  # the run has only just begun
    assert struct.unpack("<4sHB", data[:HEADER])[:2] == (b":W&B", 0xBEE1), "not a .wandb file"
    position, pending = HEADER, b""
    while position + HEADER <= len(data):
        left = BLOCK - position % BLOCK
        if left < HEADER:  # the rest of a block is too short for a header: padding
            position += left
            continue
        checksum, size, kind = struct.unpack("<IHB", data[position : position + HEADER])
        chunk = data[position + HEADER : position + HEADER + size]
        if checksum != zlib.crc32(chunk, zlib.crc32(bytes([kind]))):
            return
        position += HEADER + size
        pending = chunk if kind in (FULL, FIRST) else pending + chunk
        if kind in (FULL, LAST):
            yield pending


def run_record(path: Path) -> Any:
    """The record that says which run this is."""
    return next(record.run for record in records(path) if record.HasField("run"))


def config(path: Path) -> dict[str, Any]:
    return {item.key: json.loads(item.value_json) for item in run_record(path).config.update}


def history(path: Path) -> list[dict[str, Any]]:
    """The logged rows, without W&B's own columns (``_step`` and the like)."""
    rows = []
    for record in records(path):
        if record.HasField("history"):
            row = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            rows.append({name: json.loads(value) for name, value in row.items() if name[0] != "_"})
    return rows


def summary(path: Path) -> dict[str, Any]:
    """The last value of every summary entry."""
    values = {}
    for record in records(path):
        for item in record.summary.update:
            values["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
    return values


def metrics(path: Path) -> dict[str, Any]:
    """The metric definitions by name or glob; of several for one name, the last."""
    defined = (record.metric for record in records(path) if record.HasField("metric"))
    return {metric.name or metric.glob_name: metric for metric in defined}


def artifacts(path: Path) -> list[Any]:
    """The artifacts that the run logged, with their manifests."""
    return [
        record.request.log_artifact.artifact if record.request.HasField("log_artifact") else record.artifact
        for record in records(path)
        if record.HasField("artifact") or record.request.HasField("log_artifact")
    ]
