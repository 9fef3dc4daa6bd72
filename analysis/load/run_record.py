"""Read one run folder: its row of the frame, and its curves.

``analysis.load.cache`` keeps what this module made of a folder until the folder, or this file, changes.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic_core import from_json

from analysis.load.run_config import UnreadableError, flat_config
from experiments.runtime.json_state import read_json
from experiments.runtime.run_status import RunStatus
from experiments.tracking.run_files import HASHED, ResultRecord, damaged_files, is_intact
from experiments.tracking.study_folders import MISPLACED, misplacement

REMEDY = "delete it and run the study again"
UNREADABLE = str(RunStatus.UNREADABLE)

NUMBERS = {
    "flops_per_token": ("flops_per_token",),
    "state_bytes_2k": ("state_bytes_2k",),
    **{f"parameters_{k}": ("parameters", k) for k in ("embedding", "body", "head", "total", "active")},
    **{
        f"training_{k}": ("training", k)
        for k in (
            "steps", "tokens", "flops", "epochs", "seconds", "tokens_per_second", "data_share",
            "peak_memory_bytes", "final_loss",
        )
    },
    **{
        k: ("setup", k)
        for k in ("d_model", "num_layers", "num_heads", "d_state", "batch_size", "sequence_length")
    },
    "matched_target": ("matched", "target"),
    "matched_residual": ("matched", "residual"),
}  # fmt: skip
"""Number columns and where they stand in result.json."""

CURVES = ("train", "validation")
"""Kinds of rows of metrics.jsonl that are points of curves, in order; ``analysis.experts`` reads routing."""

SCORE_TEXTS = ("unit", "direction", "averaging", "likelihood", "estimator")

SORTED = json.JSONEncoder(sort_keys=True)

FILES = ("result.json", *HASHED)
"""Files of a run folder that this module reads."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The contents of a run folder."""

    row: dict[str, Any]
    """Columns of ``analysis.load.study``; all can be written as JSON."""
    kinds: list[str]
    """Kind of each point of the curves, one of ``CURVES``; points are in order of kind, then step."""
    points: dict[str, npt.NDArray[np.float64]]
    """By key of metrics.jsonl, a number for each point; NaN where it has none."""


def read_run(folder: Path) -> RunRecord:
    """Read a run folder. One whose files cannot be read is of status ``unreadable``, with the reason."""
    lines, corrupt = _lines(folder / "metrics.jsonl")
    curve = [line for kind in CURVES for line in _ordered([x for x in lines if x.get("kind") == kind])]
    row = _run_row(folder, corrupt)
    if row["status"] == UNREADABLE:
        curve = []  # perhaps that of another run
    points, kinds = _points(curve), [line["kind"] for line in curve]
    return RunRecord(row={**row, "curve_hash": _curve_hash(points, kinds)}, kinds=kinds, points=points)


def _curve_hash(points: dict[str, npt.NDArray[np.float64]], kinds: list[str]) -> str | None:
    """Return a hash of the losses and gradient norms of training; None where they are all one number."""
    steps = kinds.count("train")  # which come first
    values = np.stack(
        [points[key][:steps] for key in ("loss", "grad_norm") if key in points] or [np.empty(0)]
    )
    known = values[np.isfinite(values)]
    return hashlib.sha256(values.tobytes()).hexdigest()[:16] if known.size and np.ptp(known) else None


def _points(curve: list[dict[str, Any]]) -> dict[str, npt.NDArray[np.float64]]:
    """Return the numbers of each key but ``kind``; lines of the same keys are converted together."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, line in enumerate(curve):
        groups.setdefault(tuple(line), []).append(place)
    points = {key: np.full(len(curve), np.nan) for key in dict.fromkeys(chain(*groups)) if key != "kind"}
    for layout, places in groups.items():
        keys = [key for key in layout if key != "kind"]
        columns = zip(*(curve[place].values() for place in places), strict=True)
        values = [column for key, column in zip(layout, columns, strict=True) if key != "kind"]
        whole = places[-1] - places[0] + 1 == len(places)
        where = slice(places[0], places[-1] + 1) if whole else places
        for key, numbers in zip(keys, _number_table(values, len(places)), strict=True):
            points[key][where] = numbers
    return points


def _number_table(values: list[tuple[Any, ...]], width: int) -> npt.NDArray[np.float64]:
    try:
        return np.fromiter(chain.from_iterable(values), np.float64).reshape(len(values), width)
    except (TypeError, ValueError):  # something else among the numbers
        numbers = [[_number(value) for value in row] for row in values]
        return np.array(numbers, dtype=np.float64).reshape(len(values), width)


def _ordered(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return points of one kind by step; what a resumed run did twice counts as it was the last time."""
    steps: list[Any] = [line.get("step") for line in lines]
    if set(map(type, steps)) == {int} and all(map(operator.lt, steps, steps[1:])):
        return lines  # as a run writes them that was not resumed
    last = {_place(line.get("step")): line for line in lines}
    return [last[place] for place in sorted(last)]


def _place(step: Any) -> float:
    """Place of a point in its curve; one without a step comes last."""
    if type(step) is int:
        return step
    step = _number(step)
    return math.inf if math.isnan(step) else step


def _run_row(folder: Path, corrupt: int) -> dict[str, Any]:
    """Return one run as flat columns, without those that name the study and the path."""
    try:
        result = _result(folder)
        provenance = _provenance(folder)
        if other := misplacement(folder, result) or misplacement(folder, provenance):
            raise UnreadableError(f"{folder}: {other}: {MISPLACED}")
        study_keys = flat_config(folder, ("study", "optimizer"))
    except UnreadableError as error:
        result, provenance, study_keys = {"status": UNREADABLE, "message": str(error)}, {}, {}
    hashed = result.get("files") or {}
    damaged = damaged_files(result, {name: _bytes(folder / name) for name in HASHED if name in hashed})
    cell, digest = folder.parent.name.rsplit("-", 1)
    data, git = provenance.get("data") or {}, provenance.get("git") or {}
    row: dict[str, Any] = {
        "cell": cell, "digest": digest, "seed": int(folder.name[1:]), 
        "status": str(result["status"]), "message": result.get("message"),
        "backbone": result.get("backbone"), "objective": result.get("objective"),
        "task": result.get("task") or data.get("task"), "scale": result.get("scale"),
    }  # fmt: skip
    row |= _score(result.get("metrics") or [])
    row["validation"] = _number((result.get("validation") or [{}])[0].get("value"))
    for column, keys in NUMBERS.items():
        value: Any = result
        for key in keys:
            value = (value or {}).get(key)
        row[column] = _number(value)
    row |= {
        "matched_note": (result.get("matched") or {}).get("note"),
        "matched_axis": (result.get("matched") or {}).get("axis"),
        "fingerprint": result.get("fingerprint") or data.get("fingerprint"),
        "git_commit": git.get("commit"), "git_dirty": git.get("dirty"), "git_code": git.get("code"),
        "command": provenance.get("command"), "finished_at": result.get("finished_at"),
        "code": SORTED.encode(provenance.get("code") or {}),
        "versions": SORTED.encode(provenance.get("versions") or {}),
        "kernels": SORTED.encode(provenance.get("kernels") or {}),
        "references": json.dumps(result.get("references") or []),
        "published": json.dumps(study_keys.get("study.published") or []),
        "baseline": study_keys.get("study.baseline"), "against": study_keys.get("study.against"),
        "steps_to": study_keys.get("study.steps_to"),
        "solved": _number(study_keys.get("study.solved")),
        "shared_seeds": bool(study_keys.get("study.shared_seeds")),
        "margin": _number(study_keys.get("study.margin")),
        "learning_rate": _number(study_keys.get("optimizer.learning_rate")),
        "decay_ends": json.dumps(study_keys.get("optimizer.decay_end_fractions") or [1.0]),
        "changed": json.dumps(sorted((result.get("resume") or {}).get("changed") or [])),
        "loss_spikes": _number((result.get("training") or {}).get("loss_spikes")),
        "skipped_steps": _number((result.get("training") or {}).get("skipped_steps")),
        "corrupt_lines": corrupt, "damaged": json.dumps(damaged),
    }  # fmt: skip
    device = provenance.get("device") or {}
    for key in ("name", "processor", "threads", "precision"):
        value = device.get(key)
        row[f"device_{key}"] = None if value is None else str(value)
    return row


def _score(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """All metrics as SPLIT_METRIC columns, and the first of the test split as the score."""
    first = next((m for m in metrics if m["split"] == "test"), {})
    row: dict[str, Any] = {
        "score": _number(first.get("value")),
        "score_standard_error": _number(first.get("standard_error")),
        "score_items": _number(first.get("items")),
        "score_samples": _number(first.get("samples")),
        "score_clusters": _number(first.get("clusters")),
        "score_setting": _setting(first),
        "score_lossy_documents": _number(first.get("lossy_documents") or 0) if first else math.nan,
        "metric": first.get("name"),
    }
    row |= {key: first.get(key) for key in SCORE_TEXTS}
    row["slices"] = json.dumps(first["slices"]) if first.get("slices") else None
    own = [m for m in metrics if m["split"] in ("validation", "test")]
    further = {
        m["split"]: _number(m.get("value")) for m in metrics if m not in own and m["name"] == row["metric"]
    }
    row["further"] = json.dumps(further)
    return row | {f"{m['split']}_{m['name']}": _number(m.get("value")) for m in own}


def _setting(metric: dict[str, Any]) -> str | None:
    """Return in words which part of the split a metric is of."""
    if (scored := metric.get("scored")) is None:
        return None
    if scored == "random sample":
        scored = f"random sample of {metric['items']} of {metric['available']} items"
    if metric.get("window") is None:
        return str(scored)
    return f"{scored}, windows of {metric['window']} tokens, {metric['stride']} of them scored"


def _result(folder: Path) -> dict[str, Any]:
    """Return result.json, of status ``incomplete`` where there is none. Raises UnreadableError."""
    path = folder / "result.json"
    found = read_json(path, ResultRecord, REMEDY, UnreadableError)
    if found is None:
        return {"status": "incomplete"}
    if found["format"] != 1:
        raise UnreadableError(
            f"{path} is not a record of format 1: it comes from another version of archbench"
        )
    if not is_intact(found):
        raise UnreadableError(f"{path}: has changed since it was written: {REMEDY}")
    return dict(found)


def _provenance(folder: Path) -> dict[str, Any]:
    """Return provenance.json, empty where there is none or no object. Raises UnreadableError."""
    return read_json(folder / "provenance.json", dict[str, Any], REMEDY, UnreadableError) or {}


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError:  # such as a link to itself: it is there, and has not the content that was written
        return b""


def _lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The JSON objects of a JSONL file, and how many lines were none: a killed run ends mid-line.

    Where all lines look whole, they are read as one list, which is several times as fast.
    """
    content = _bytes(path)
    if content is None:
        return [], 0
    joined = content.removesuffix(b"\n")
    ends = joined.count(b"\n")
    if joined[:1] == b"{" and joined[-1:] == b"}" and joined.count(b"}\n{") == ends:
        try:
            found = from_json(b"[%b]" % joined.replace(b"\n", b","))
        except ValueError:
            found = []
        if len(found) == ends + 1 and all(type(row) is dict for row in found):
            return found, 0
    lines = [line for line in content.decode(errors="replace").splitlines() if line.strip()]
    rows = [row for line in lines if isinstance(row := _object(line), dict)]
    return rows, len(lines) - len(rows)


def _object(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _number(value: Any) -> float:
    """A number of the record, where NaN and infinities are text; NaN for None and anything else."""
    try:
        return float("nan") if value is None else float(value)
    except (TypeError, ValueError):
        return float("nan")
