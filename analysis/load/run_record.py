"""Read one run folder: its row of the frame, and its curves.

``analysis.load.cache`` keeps what this module made of a folder until the folder, or this file, changes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic_core import from_json

from archbench.analysis.load.run_config import UnreadableError, flat_config
from archbench.experiments.config.study import TuningConfig
from archbench.experiments.runtime.json_state import parse_model, read_text
from archbench.experiments.runtime.run_status import RunStatus
from archbench.experiments.tasks.metrics import SAMPLE, Metric
from archbench.experiments.tracking.frame_columns import SECTIONS, columns
from archbench.experiments.tracking.run_files import (
    HASHED,
    TOKENIZER,
    DeviceUsed,
    GitState,
    Provenance,
    RunResult,
    damaged_files,
    parse_result,
)
from archbench.experiments.tracking.run_folder import MISPLACED, misplacement

REMEDY = "delete it and run the study again"
UNREADABLE = str(RunStatus.UNREADABLE)

NUMBERS = [
    name
    for name in (
        "flops_per_token",
        "state_bytes_2k",
        *(n for s in SECTIONS.values() for n in s.columns.values()),
    )
    if columns()[name].kind == "number"
]
"""Number columns that ``study.against`` can name."""

TUNING = [field.name for field in fields(TuningConfig)]
"""Fields that a run records about the search for its learning rate."""
CURVES = ("train", "validation")
"""Kinds of rows of metrics.jsonl that are points of curves, in order; ``analysis.experts`` reads routing."""

RESULT_TEXTS = (
    "message", "backbone", "objective", "task", "scale", "rules", "fingerprint", "finished_at"
)  # fmt: skip
SCORE_TEXTS = ("unit", "direction", "averaging", "likelihood", "estimator")
SCORE_NUMBERS = ("standard_error", "items", "samples", "clusters")
TEXT_COLUMNS = {name for name, column in columns().items() if column.kind == "text"}

SORTED = json.JSONEncoder(sort_keys=True)

RunRow = dict[str, str | float | bool | None]
"""Columns of the results frame."""

FILES = ("result.json", *HASHED)
"""Files of a run folder that this module reads."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The contents of a run folder."""

    row: RunRow
    """Columns of ``analysis.load.study``; all can be written as JSON."""
    kinds: list[str]
    """Type of each point of the curves, one of ``CURVES``; points are in order of type, then step."""
    points: dict[str, npt.NDArray[np.float64]]
    """By key of metrics.jsonl, a number for each point; NaN where it has none."""


def read_run(folder: Path) -> RunRecord:
    """Read a run folder. One whose files cannot be read is of status ``unreadable``, with the reason."""
    # Each file is opened once; result.json first, as it is written last and lists the other files.
    contents = {name: _bytes(folder / name) for name in FILES if name != TOKENIZER}
    lines, corrupt = _lines(contents["metrics.jsonl"])
    curve = [line for kind in CURVES for line in _ordered([x for x in lines if x.get("kind") == kind])]
    row = _run_row(folder, contents, corrupt)
    if row["status"] == UNREADABLE:
        curve = []  # perhaps that of another run
    points, kinds = _points(curve), [str(line["kind"]) for line in curve]
    # A hash of the losses and gradient norms of training; None where they are all one number.
    steps = kinds.count("train")  # which come first
    values = np.stack(
        [points[key][:steps] for key in ("loss", "grad_norm") if key in points] or [np.empty(0)]
    )
    finite = values[np.isfinite(values)]
    varies = finite.size and np.ptp(finite)
    row["curve_hash"] = hashlib.sha256(values.tobytes()).hexdigest()[:16] if varies else None
    return RunRecord(row=row, kinds=kinds, points=points)


def _points(curve: list[dict[str, object]]) -> dict[str, npt.NDArray[np.float64]]:
    """Return the values of each key but ``kind``; lines of the same keys are converted together."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, line in enumerate(curve):
        groups.setdefault(tuple(line), []).append(index)
    points = {key: np.full(len(curve), np.nan) for key in dict.fromkeys(chain(*groups)) if key != "kind"}
    for layout, indices in groups.items():
        keys = [key for key in layout if key != "kind"]
        columns = zip(*(curve[index].values() for index in indices), strict=True)
        values: list[tuple[Any, ...]] = [
            column for key, column in zip(layout, columns, strict=True) if key != "kind"
        ]
        try:
            numbers = np.fromiter(chain.from_iterable(values), np.float64)
        except (TypeError, ValueError, OverflowError):  # something else among the values
            numbers = np.array([_number(value) for column in values for value in column], np.float64)
        contiguous = indices[-1] - indices[0] + 1 == len(indices)
        selection = slice(indices[0], indices[-1] + 1) if contiguous else indices
        for key, column in zip(keys, numbers.reshape(len(keys), len(indices)), strict=True):
            points[key][selection] = column
    return points


def _ordered(lines: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return points of one type by step; what a resumed run did twice counts as it was the last time."""
    steps: list[Any] = [line.get("step") for line in lines]
    if set(map(type, steps)) == {int} and all(map(operator.lt, steps, steps[1:])):
        return lines  # as a run writes them that was not resumed
    keys = [step if type(step) is int else _number(step) for step in steps]
    # A point without a step comes last.
    last = {key if key == key else math.inf: line for key, line in zip(keys, lines, strict=True)}
    return [last[key] for key in sorted(last)]


def _run_row(folder: Path, contents: Mapping[str, bytes | None], corrupt: int) -> RunRow:
    """Return one run as flat columns, without those of its curves; ``contents`` are those of its files."""
    reason = None
    try:
        result, provenance = None, None
        path = folder / "result.json"
        if (text := _text(path, contents[path.name])) is not None:
            result = parse_result(text, path, REMEDY, UnreadableError)
        path = folder / "provenance.json"
        if (text := _text(path, contents[path.name])) is not None:
            provenance = parse_model(text, Provenance, str(path), REMEDY, UnreadableError)
        records: list[RunResult | Provenance | None] = [result, provenance]
        for record in records:
            if record is not None and (other := misplacement(folder, record.key)):
                raise UnreadableError(f"{folder}: {other}: {MISPLACED}")
        study_keys = flat_config(folder, ("study", "optimizer"), contents["config.yaml"])
    except UnreadableError as error:
        result, provenance, study_keys, reason = None, None, {}, str(error)
    cell, digest = folder.parent.name.rsplit("-", 1)
    row: RunRow = {"cell": cell, "digest": digest, "seed": int(folder.name[1:])}
    row |= _result_columns(folder, contents, result)
    if reason is not None:
        row |= {"status": UNREADABLE, "message": reason}
    git, device = (getattr(provenance, part, None) for part in ("git", "device"))
    row |= {f"git_{name}": getattr(git, name, None) for name in GitState.model_fields}
    for name in DeviceUsed.model_fields:
        value = getattr(device, name, None)
        row[f"device_{name}"] = None if value is None else str(value)
    row |= {name: SORTED.encode(getattr(provenance, name, {})) for name in ("code", "versions", "kernels")}
    row["command"] = getattr(provenance, "command", None)
    row["recorded_study"] = getattr(result, "study", None) or study_keys.get("study.name")
    protocol = study_keys.get("study.protocol")  # 1.0 is a number where it was typed without quotes
    row |= {
        "protocol": None if protocol is None else str(protocol),
        "published": json.dumps(study_keys.get("study.published") or []),
        **{name: study_keys.get(f"study.{name}") for name in ("baseline", "explains", "against", "steps_to")},
        "solved": _number(study_keys.get("study.solved")),
        **{f"tuning_{name}": _number(study_keys.get(f"study.tuning.{name}")) for name in TUNING},
        "ladder": study_keys.get("study.ladder.name"),
        "difficulty": _number(study_keys.get("study.ladder.difficulty")),
        "difficulty_unit": study_keys.get("study.ladder.unit"),
        "shared_seeds": bool(study_keys.get("study.shared_seeds")),
        "margin": _number(study_keys.get("study.margin")),
        "learning_rate": _number(study_keys.get("optimizer.learning_rate")),
        "decay_ends": json.dumps(study_keys.get("optimizer.decay_end_fractions") or [1.0]),
    }
    if result is None and provenance is not None:
        row |= {"task": provenance.data.task, "fingerprint": provenance.data.fingerprint}
    return {**row, "corrupt_lines": corrupt}


def _result_columns(folder: Path, contents: Mapping[str, bytes | None], result: RunResult | None) -> RunRow:
    """Return the columns of result.json; those of an incomplete run without one."""
    metrics = [] if result is None else result.metrics
    row: RunRow = {name: getattr(result, name, None) for name in RESULT_TEXTS}
    row["status"] = str(RunStatus.INCOMPLETE if result is None else result.status)
    row |= _score_columns(metrics)
    validation = result.validation if result is not None else []
    row["validation"] = validation[0].value if validation else math.nan
    for name in ("flops_per_token", "state_bytes_2k"):
        row[name] = _number(getattr(result, name, None))
    for section, described in SECTIONS.items():
        values = getattr(result, section, None)
        for field, column in described.columns.items():
            value = getattr(values, field, None)
            row[column] = value if column in TEXT_COLUMNS else _number(value)
    references = [] if result is None else result.references
    text = None if result is None or result.sample is None else result.sample.tree()
    row["sample"] = None if text is None else json.dumps(text)
    row["references"] = json.dumps([asdict(line) for line in references])
    changed = result.resume.changed if result is not None and result.resume is not None else {}
    row["changed"] = json.dumps(sorted(changed))
    if result is not None and TOKENIZER in result.files:
        contents = {**contents, TOKENIZER: _bytes(folder / TOKENIZER)}
    row["damaged"] = json.dumps([] if result is None else damaged_files(result, contents))
    return row


def _score_columns(metrics: list[Metric]) -> RunRow:
    """Return all metrics as SPLIT_METRIC columns, and the first of the test split as the score."""
    score = next((metric for metric in metrics if metric.split == "test"), None)
    # A description of the part of the split that was scored.
    setting = None if score is None else score.scored
    if score is not None and setting is not None:
        if setting == SAMPLE:
            setting = f"{SAMPLE} of {score.items} of {score.available} items"
        if score.window is not None:
            setting += f", windows of {score.window} tokens, {score.stride} of them scored"
    row: RunRow = {f"score_{name}": _number(getattr(score, name, None)) for name in SCORE_NUMBERS}
    row |= {name: getattr(score, name, None) for name in SCORE_TEXTS}
    row |= {
        "score": math.nan if score is None else score.value,
        "score_setting": setting,
        "score_lossy_documents": math.nan if score is None else float(score.lossy_documents or 0),
        "metric": None if score is None else score.name,
    }
    slices = None if score is None else score.slices
    row["slices"] = json.dumps([asdict(part) for part in slices]) if slices else None
    is_text = score is not None and score.name == "bits_per_byte" and score.cluster_totals
    row["documents"] = json.dumps(score.cluster_totals) if score is not None and is_text else None
    splits = ("validation", "test")
    further = {m.split: m.value for m in metrics if m.split not in splits and m.name == row["metric"]}
    row["further"] = json.dumps(further)
    return row | {f"{m.split}_{m.name}": float(m.value) for m in metrics if m.split in splits}


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError:  # such as a link to itself: it is there, and has not the content that was written
        return b""


def _text(path: Path, content: bytes | None) -> str | None:
    """Return the text of a file; None if it is missing. Raises UnreadableError with the reason."""
    if content:
        with contextlib.suppress(ValueError):
            return content.decode("utf-8-sig")
    return read_text(path, REMEDY, UnreadableError)


def _lines(content: bytes | None) -> tuple[list[dict[str, object]], int]:
    """Return the JSON objects of a JSONL file, and the number of other lines: a killed run ends mid-line.

    Where all lines look whole, they are read as one list, which is much faster.
    """
    if content is None:
        return [], 0
    joined = content.removesuffix(b"\n")
    ends = joined.count(b"\n")
    if joined[:1] == b"{" and joined[-1:] == b"}" and joined.count(b"}\n{") == ends:
        try:
            parsed = from_json(b"[%b]" % joined.replace(b"\n", b","))
        except ValueError:
            parsed = []
        if len(parsed) == ends + 1 and all(type(row) is dict for row in parsed):
            return parsed, 0
    lines = [line for line in content.decode(errors="replace").splitlines() if line.strip()]
    rows = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(row := json.loads(line), dict):
                rows.append(row)
    return rows, len(lines) - len(rows)


def _number(value: Any) -> float:
    """Return a value of a JSON file as a number; NaN and infinities are text there. NaN for anything else."""
    try:
        return float("nan") if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")
