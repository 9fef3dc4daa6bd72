"""Read run folders into pandas: one tidy row for each run, failures included.

``experiments.tracking.frame_columns`` describes the columns.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pydantic_core import from_json

from archbench.analysis.load.arm_names import arm_names
from archbench.analysis.load.cache import CURVE, read_runs
from archbench.analysis.load.joined_studies import join_studies
from archbench.analysis.load.run_record import NUMBERS
from archbench.architectures.nearest_name import nearest_name
from archbench.experiments.config.study import study_words, train_command
from archbench.experiments.runtime.errors import nearest, nearest_folder
from archbench.experiments.tracking.run_folder import StudyFolders

LEADING = ("step", "tokens", "flops", "seconds")
"""Columns of every history, after ``path`` and ``kind``; the remaining ones follow in alphabetical order."""


def load_study(runs: Path, study: str) -> pd.DataFrame:
    """Return every run of a study as one row; with the columns of ``frame_columns``.

    Args:
        runs: the folder of all studies.
        study: the study's name, a folder inside ``runs``; or multiple names, separated by commas.

    Raises:
        ValueError: no such study, no run in it, studies that cannot be compared, or ``study.against`` names
            no number column.
    """
    frames = [_load_one(runs, name) for name in study_names(study)]
    frame = frames[0] if len(frames) == 1 else join_studies(frames)
    frame["arm"] = arm_names(frame)
    return frame.sort_values(["task", "scale", "arm", "seed"], ignore_index=True)


def study_names(study: str) -> list[str]:
    """Return the names that ``study=a,b`` lists. Raises ValueError for an empty one."""
    names = [name.strip() for name in study.split(",")]
    if not all(names):
        raise ValueError(f"study={study}: a name is empty: write study=NAME, or study=NAME,NAME")
    return list(dict.fromkeys(names))


def _load_one(runs: Path, study: str) -> pd.DataFrame:
    """Return the runs of one study, whose arms have no names yet."""
    root, folders = runs / study, study_folders(runs, study)
    texts = read_runs(root, folders.runs, curves=False)["row"].to_pylist()
    rows = {name: from_json(text) for name, text in zip(folders.runs, texts, strict=True)}
    recorded = {name: row.pop("recorded_study") for name, row in rows.items()}
    known = {other for other in recorded.values() if other is not None}
    # A study whose folder was renamed is one still; a killed run may have recorded nothing.
    own = study if study in known or not known else _common(root, known)
    foreign = [f"{name} of study={other}" for name, other in recorded.items() if other not in (own, None)]
    shared = {"study": study, "left_out": json.dumps([*folders.others, *foreign])}
    frame = pd.DataFrame(
        [
            {**shared, "path": f"{root}/{name}"} | row
            for name, row in rows.items()
            if recorded[name] in (own, None)
        ]
    )
    for name in frame["against"].dropna().unique():
        if name not in NUMBERS:
            near = nearest_name(name, NUMBERS)
            hint = f"did you mean '{near}'? " if near else ""
            raise ValueError(f"study.against={name}: {hint}the numbers are {', '.join(NUMBERS)}")
    # A killed run has not recorded its backbone and task; another seed of its cell has.
    for column in ("backbone", "objective", "task", "scale"):
        of_cell = frame.groupby(["cell", "digest"])[column].transform("first")
        frame[column] = frame[column].where(frame[column].notna(), of_cell)
    parts = frame["cell"].str.split("-").where(frame["cell"].str.count("-").isin([2, 3]))
    for part, column in ((0, "backbone"), (-2, "task"), (-1, "scale")):
        frame[column] = frame[column].where(frame[column].notna(), parts.str[part])
    frame["backbone"] = frame["backbone"].where(frame["backbone"].notna(), frame["cell"])
    return frame.fillna({"objective": "unknown", "task": "unknown", "scale": "unknown"})


def _common(root: Path, studies: set[str]) -> str:
    """Return the study of all runs of a folder. Raises ValueError if there is more than one."""
    if len(studies) > 1:
        raise ValueError(
            f"{root}/ has runs of study={', study='.join(sorted(studies))}, and none of study={root.name}: "
            "move them back to the folders of their studies"
        )
    return next(iter(studies))


def load_history(runs: Path, study: str) -> pd.DataFrame:
    """Return the points of the curves of every run of a study, in order of path, kind and step.

    Columns: ``path`` (as in ``load_study``, to join on), ``kind`` (``train`` or
    ``validation``), then the keys of the rows: ``step``, ``tokens``, ``flops``,
    ``seconds``, ``loss``, ``bits_per_byte`` and so on, float64. A step that a
    resumed run repeated is there once, as it was the last time.

    Raises:
        ValueError: no such study, or no run in it.
    """
    histories = []
    for name in study_names(study):
        root, folders = runs / name, sorted(study_folders(runs, name).runs)
        table = read_runs(root, folders, curves=True).combine_chunks()
        lengths = pc.list_value_length(table["kind"]).to_numpy()
        runs_of_points = pa.array(np.repeat(np.arange(len(folders)), lengths))
        paths = pa.DictionaryArray.from_arrays(runs_of_points, [f"{root}/{folder}" for folder in folders])
        columns = {"path": paths.cast(pa.string()), "kind": pc.list_flatten(table["kind"])}
        curves = [column for column in table.column_names if column.startswith(CURVE)]
        keys = {c.removeprefix(CURVE) for c in curves if table[c].null_count < len(folders)}
        for key in [*LEADING, *sorted(keys - set(LEADING))]:
            columns[key] = np.full(lengths.sum(), np.nan)
            if key in keys:
                of_run = table[CURVE + key]
                columns[key][np.repeat(of_run.is_valid().to_numpy(), lengths)] = pc.list_flatten(of_run)
        histories.append(pa.table(columns).to_pandas())
    return pd.concat(histories, ignore_index=True)


def study_folders(runs: Path, study: str) -> StudyFolders:
    """Return the run folders of a study, and its other folders. Raises ValueError if it has none."""
    root = runs / study
    if not root.is_dir():
        studies = sorted(p.name for p in runs.iterdir() if p.is_dir()) if runs.is_dir() else []
        content = f"studies there: {', '.join(studies)}" if studies else "there are none yet"
        if not runs.is_dir():
            content = f"there is no such folder{nearest_folder(runs)}"
        remedy = _remedy(root, nearest_name(study, studies))
        raise ValueError(f"study={study} is not in {runs}/: {content}; {remedy}")
    folders = StudyFolders.of(root)
    if not folders.runs:
        raise ValueError(f"study={study} has no runs in {root}/: {_remedy(root, None)}")
    return folders


def _remedy(root: Path, near: str | None) -> str:
    """Return how to get the runs of a study whose folder ``root`` is missing or empty.

    Args:
        root: the folder of its runs.
        near: name of a study with runs that is suggested if there is no such study to run.
    """
    if command := train_command(root):
        return f"run it first: {command}"
    hint = nearest(root.name, [near] if near else study_words())
    return f"nor is there a conf/study/{root.name}.yaml to run{hint}"
