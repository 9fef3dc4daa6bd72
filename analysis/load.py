"""Reads run folders into pandas: one tidy row for each run, failures included.

Columns of the frame that ``load_study`` returns. A group of the record and a
key inside it are joined with an underscore, so ``training.flops`` is
``training_flops``; numbers are float64 (NaN where the record has none), the
rest is text (None where the record has none).

    study cell digest seed path        which run; ``seed`` is an integer
    status message                     ``incomplete`` where result.json is not (yet) there
    backbone objective task scale arm  ``arm`` is the shortest name that tells the cells of a task apart
    score score_standard_error score_items score_samples
    metric unit direction averaging likelihood estimator
                                       the first test metric of the record; the standard error is over
                                       items of the test split, not over seeds
    SPLIT_METRIC                       every metric, for example ``test_bits_per_byte``
    further                            the score in each of the further tests (``trainer.tests``), JSON text
    published                          what the study quotes from others (``study.published``), JSON text
    baseline against                   what more the tables show: ``study.baseline``, ``study.against``
    solved                             the accuracy from which on a task counts as solved (``study.solved``)
    steps_to                           the arm whose final score the others are timed to (``study.steps_to``)
    parameters_*  flops_per_token  state_bytes_2k  training_*
    matched_axis matched_target matched_residual
    fingerprint git_commit git_dirty device_* versions kernels command
    references versions kernels        JSON text
    changed                            what of code, libraries, machine changed between sittings, JSON text;
                                       where it is not empty, the result is not exact to the last bit
    loss_spikes skipped_steps          jumps of the training loss; steps left out as it was no number
    corrupt_lines                      lines of metrics.jsonl that are no JSON object
"""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

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
    "matched_target": ("matched", "target"),
    "matched_residual": ("matched", "residual"),
}  # fmt: skip
"""Number columns and where they stand in result.json."""

CURVES = ("train", "validation")
"""Kinds of rows of metrics.jsonl that are points of curves; ``analysis.experts`` reads ``routing``."""

SCORE_TEXTS = ("unit", "direction", "averaging", "likelihood", "estimator")


def load_study(runs: Path, study: str) -> pd.DataFrame:
    """Every run of a study as one row; see the module's docstring for the columns.

    Args:
        runs: the folder of all studies.
        study: the study's name, a folder inside ``runs``.

    Raises:
        ValueError: no such study, no run in it, a record that cannot be read, or ``study.against`` names no
            number column.
    """
    folders = run_folders(runs, study)
    frame = pd.DataFrame([_run_row(folder, study) for folder in folders])
    for name in frame["against"].dropna().unique():
        if name not in NUMBERS:
            near = difflib.get_close_matches(name, NUMBERS, n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise ValueError(f"study.against={name}: {hint}the numbers are {', '.join(NUMBERS)}")
    # A killed run has not said what it was; another seed of its cell has.
    for column in ("backbone", "objective", "task", "scale"):
        known = frame.groupby(["cell", "digest"])[column].transform("first")
        frame[column] = frame[column].where(frame[column].notna(), known)
    frame["backbone"] = frame["backbone"].where(frame["backbone"].notna(), frame["cell"])
    frame = frame.fillna({"objective": "unknown", "task": "unknown", "scale": "unknown"})
    frame["arm"] = _arm_names(frame)
    return frame.sort_values(["task", "scale", "arm", "seed"], ignore_index=True)


def load_history(runs: Path, study: str) -> pd.DataFrame:
    """Every row of every metrics.jsonl of a study, one below the other.

    Columns: ``path`` (as in ``load_study``, to join on), ``kind`` (``train`` or
    ``validation``), then the keys of the rows: ``step``, ``tokens``, ``flops``,
    ``seconds``, ``loss``, ``bits_per_byte`` and so on, float64. A step that a
    resumed run went through twice is there once, as it was the last time.
    """
    rows = []
    for folder in run_folders(runs, study):
        for line in _lines(folder / "metrics.jsonl")[0]:
            if line.get("kind") not in CURVES:
                continue
            numbers = {k: _number(v) for k, v in line.items() if k != "kind"}
            rows.append({"path": str(folder), "kind": str(line.get("kind")), **numbers})
    frame = pd.DataFrame(rows)
    for column in ("path", "kind", "step", "tokens", "flops", "seconds"):
        if column not in frame:
            frame[column] = pd.Series(dtype="float64")
    frame = frame.drop_duplicates(["path", "kind", "step"], keep="last")
    return frame.sort_values(["path", "kind", "step"], ignore_index=True)


def run_folders(runs: Path, study: str) -> list[Path]:
    """The run folders of a study, ``runs/STUDY/CELL-DIGEST/sSEED``, in order of their names."""
    remedy = f"run it first: python -m experiments.train study={study}"
    root = runs / study
    if not root.is_dir():
        studies = sorted(p.name for p in runs.iterdir() if p.is_dir()) if runs.is_dir() else []
        near = difflib.get_close_matches(study, studies, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        there = f"studies there: {', '.join(studies)}" if studies else "there are none yet"
        raise ValueError(f"study={study} is not in {runs}/: {hint}{there}; or {remedy}")
    folders = sorted(p for p in root.glob("*-*/s*") if p.is_dir() and p.name[1:].isdigit())
    if not folders:
        raise ValueError(f"study={study} has no runs in {root}/: {remedy}")
    return folders


def _run_row(folder: Path, study: str) -> dict[str, Any]:
    """One run as flat columns."""
    cell, digest = folder.parent.name.rsplit("-", 1)
    result = _json(folder / "result.json") or {"status": "incomplete"}
    provenance = _json(folder / "provenance.json") or {}
    data, git = provenance.get("data") or {}, provenance.get("git") or {}
    study_keys = _flat_config(folder, ("study",))
    row: dict[str, Any] = {
        "study": study, "cell": cell, "digest": digest, "seed": int(folder.name[1:]), "path": str(folder),
        "status": str(result["status"]), "message": result.get("message"),
        "backbone": result.get("backbone"), "objective": result.get("objective"),
        "task": result.get("task") or data.get("task"), "scale": result.get("scale"),
    }  # fmt: skip
    row |= _score(result.get("metrics") or [])
    for column, keys in NUMBERS.items():
        value: Any = result
        for key in keys:
            value = (value or {}).get(key)
        row[column] = _number(value)
    row |= {
        "matched_axis": (result.get("matched") or {}).get("axis"),
        "fingerprint": result.get("fingerprint") or data.get("fingerprint"),
        "git_commit": git.get("commit"), "git_dirty": git.get("dirty"),
        "command": provenance.get("command"),
        "versions": json.dumps(provenance.get("versions") or {}, sort_keys=True),
        "kernels": json.dumps(provenance.get("kernels") or {}, sort_keys=True),
        "references": json.dumps(result.get("references") or []),
        "published": json.dumps(study_keys.get("study.published") or []),
        "baseline": study_keys.get("study.baseline"), "against": study_keys.get("study.against"),
        "steps_to": study_keys.get("study.steps_to"),
        "solved": _threshold(study_keys.get("study.solved")),
        "changed": json.dumps(sorted((result.get("resume") or {}).get("changed") or [])),
        "loss_spikes": _number((result.get("training") or {}).get("loss_spikes")),
        "skipped_steps": _number((result.get("training") or {}).get("skipped_steps")),
        "corrupt_lines": _lines(folder / "metrics.jsonl")[1],
    }  # fmt: skip
    device = provenance.get("device") or {}
    for key in ("name", "processor", "threads", "precision"):
        value = device.get(key)
        row[f"device_{key}"] = None if value is None else str(value)
    return row


def _threshold(value: Any) -> float:
    """``study.solved`` as a number; NaN where a study does not ask."""
    number = _number(value)
    if value is not None and not 0 < number <= 1:
        raise ValueError(f"study.solved={value}: it must be an accuracy above 0, up to 1, such as 0.95")
    return number


def _score(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """All metrics as SPLIT_METRIC columns, and the first of the test split as the score."""
    first = next((m for m in metrics if m["split"] == "test"), {})
    row: dict[str, Any] = {
        "score": _number(first.get("value")),
        "score_standard_error": _number(first.get("standard_error")),
        "score_items": _number(first.get("items")),
        "score_samples": _number(first.get("samples")),
        "metric": first.get("name"),
    }
    row |= {key: first.get(key) for key in SCORE_TEXTS}
    own = [m for m in metrics if m["split"] in ("validation", "test")]
    further = {
        m["split"]: _number(m.get("value")) for m in metrics if m not in own and m["name"] == row["metric"]
    }
    row["further"] = json.dumps(further)
    return row | {f"{m['split']}_{m['name']}": _number(m.get("value")) for m in own}


def _arm_names(frame: pd.DataFrame) -> pd.Series:
    """The shortest unique one of backbone, and objective, or and settings; else cell and digest.

    Two digests of one cell are two configs, so they are never averaged together.
    """
    identity = frame["cell"] + "-" + frame["digest"]
    place = frame["task"] + " " + frame["scale"]
    names = frame["backbone"].astype(str)
    candidates = (
        lambda: frame["backbone"] + " " + frame["objective"],
        lambda: frame["backbone"] + _settings(frame, identity, place + " " + frame["backbone"]),
        lambda: identity,
    )
    for longer in candidates:
        shared = identity.groupby([place, names]).transform("nunique") > 1
        if shared.any():
            names = names.where(~shared, longer())
    return names


def _settings(frame: pd.DataFrame, identity: pd.Series, group: pd.Series) -> pd.Series:
    """The settings by which the configs of a group differ, as " key=value key=value"."""
    flat = {key: _flat_config(Path(path)) for key, path in zip(identity, frame["path"], strict=True)}
    words: dict[str, str] = {}
    for keys in identity.groupby(group).unique():
        settings = sorted({setting for key in keys for setting in flat[key]})
        values = {s: tuple(repr(flat[key].get(s)) for key in keys) for s in settings}
        # A setting that only follows another of its name (``backbone.block_length``) says nothing new.
        followed = {(s.split(".")[-1], values[s]): s for s in settings if len(set(values[s])) > 1}
        varied = sorted(followed.values())
        last = [setting.split(".")[-1] for setting in varied]
        short = {s: name if last.count(name) == 1 else s for s, name in zip(varied, last, strict=True)}
        for key in keys:
            words[key] = "".join(f" {short[s]}={flat[key].get(s)}" for s in varied)
    return identity.map(words)


DECIDING = ("backbone", "objective", "task", "scale", "budget", "optimizer")
"""Sections of a configuration that decide a run's result."""


def _flat_config(folder: Path, sections: tuple[str, ...] = DECIDING) -> dict[str, Any]:
    """Sections of a run's configuration as dotted keys; empty where the run left none."""
    path = folder / "config.yaml"
    if not path.is_file():
        return {}
    flat: dict[str, Any] = {}

    def collect(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                collect(f"{prefix}{key}.", inner)
        else:
            flat[prefix[:-1]] = value

    config = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(config, dict)
    for section in sections:
        collect(f"{section}.", config.get(section, {}))
    return flat


def _json(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file; None where there is no file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}): delete it and run the study again") from error
    if not isinstance(value, dict) or value.get("format", 1) != 1:
        raise ValueError(f"{path} is not a record of format 1: it comes from another version of archbench")
    return value


def _lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The JSON objects of a JSONL file, and how many lines were none: a killed run ends mid-line."""
    rows, corrupt = [], 0
    if not path.is_file():
        return [], 0
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict):
            rows.append(row)
        elif line.strip():
            corrupt += 1
    return rows, corrupt


def _number(value: Any) -> float:
    """A number of the record, where NaN and infinities are text; NaN for None and anything else."""
    try:
        return float("nan") if value is None else float(value)
    except (TypeError, ValueError):
        return float("nan")
