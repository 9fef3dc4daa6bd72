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

from analysis.load.arm_names import arm_names
from analysis.load.cache import CURVE, read_runs
from analysis.load.joined_studies import join_studies
from analysis.load.run_record import NUMBERS
from architectures.nearest_name import nearest_name
from experiments.config.studies import study_words, train_command
from experiments.runtime.errors import nearest, nearest_folder
from experiments.tracking.study_folders import StudyFolders

LEADING = ("step", "tokens", "flops", "seconds")
"""Columns of every history, after ``path`` and ``kind``; the others follow in alphabetical order."""


def load_study(runs: Path, study: str) -> pd.DataFrame:
    """Return every run of a study as one row; with the columns of ``frame_columns``.

    Args:
        runs: the folder of all studies.
        study: the study's name, a folder inside ``runs``; of several, the names with commas between them.

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
    own = {"study": study, "left_out": json.dumps(folders.others)}
    rows = (
        {**own, "path": f"{root}/{name}"} | json.loads(text)
        for name, text in zip(folders.runs, texts, strict=True)
    )
    frame = pd.DataFrame(list(rows))
    for name in frame["against"].dropna().unique():
        if name not in NUMBERS:
            near = nearest_name(name, NUMBERS)
            hint = f"did you mean '{near}'? " if near else ""
            raise ValueError(f"study.against={name}: {hint}the numbers are {', '.join(NUMBERS)}")
    # A killed run has not said what it was; another seed of its cell has.
    for column in ("backbone", "objective", "task", "scale"):
        known = frame.groupby(["cell", "digest"])[column].transform("first")
        frame[column] = frame[column].where(frame[column].notna(), known)
    parts = frame["cell"].str.split("-").where(frame["cell"].str.count("-").isin([2, 3]))
    for place, column in ((0, "backbone"), (-2, "task"), (-1, "scale")):
        named = parts.str[place]
        frame[column] = frame[column].where(frame[column].notna(), named)
    frame["backbone"] = frame["backbone"].where(frame["backbone"].notna(), frame["cell"])
    return frame.fillna({"objective": "unknown", "task": "unknown", "scale": "unknown"})


def load_history(runs: Path, study: str) -> pd.DataFrame:
    """The points of the curves of every run of a study, one below the other, in order of path, kind and step.

    Columns: ``path`` (as in ``load_study``, to join on), ``kind`` (``train`` or
    ``validation``), then the keys of the rows: ``step``, ``tokens``, ``flops``,
    ``seconds``, ``loss``, ``bits_per_byte`` and so on, float64. A step that a
    resumed run went through twice is there once, as it was the last time.

    Raises:
        ValueError: no such study, or no run in it.
    """
    return pd.concat([_load_curves(runs, name) for name in study_names(study)], ignore_index=True)


def _load_curves(runs: Path, study: str) -> pd.DataFrame:
    """Return the points of one study."""
    root, names = runs / study, sorted(study_folders(runs, study).runs)
    table = read_runs(root, names, curves=True).combine_chunks()
    lengths = pc.list_value_length(table["kind"]).to_numpy()
    runs_of_points = pa.array(np.repeat(np.arange(len(names)), lengths))
    paths = pa.DictionaryArray.from_arrays(runs_of_points, [f"{root}/{name}" for name in names])
    columns = {"path": paths.cast(pa.string()), "kind": pc.list_flatten(table["kind"])}
    there = [name for name in table.column_names if name.startswith(CURVE)]
    keys = {name.removeprefix(CURVE) for name in there if table[name].null_count < len(names)}
    for key in [*LEADING, *sorted(keys - set(LEADING))]:
        columns[key] = np.full(lengths.sum(), np.nan)
        if key in keys:
            of_run = table[CURVE + key]
            columns[key][np.repeat(of_run.is_valid().to_numpy(), lengths)] = pc.list_flatten(of_run)
    return pa.table(columns).to_pandas()


def study_folders(runs: Path, study: str) -> StudyFolders:
    """Return the run folders of a study, and what stands beside them. Raises ValueError if it has none."""
    root = runs / study
    if not root.is_dir():
        studies = sorted(p.name for p in runs.iterdir() if p.is_dir()) if runs.is_dir() else []
        near = nearest_name(study, studies)
        there = f"studies there: {', '.join(studies)}" if studies else "there are none yet"
        if not runs.is_dir():
            there = f"there is no such folder{nearest_folder(runs)}"
        raise ValueError(f"study={study} is not in {runs}/: {there}; {_remedy(root, near)}")
    folders = StudyFolders.of(root)
    if not folders.runs:
        raise ValueError(f"study={study} has no runs in {root}/: {_remedy(root, None)}")
    return folders


def _remedy(root: Path, near: str | None) -> str:
    """Return how to get the runs of a study; of one that nobody wrote, the nearest (``near``, if any).

    Args:
        root: the folder of its runs, which is not there or empty.
        near: name of a study that has runs.
    """
    if command := train_command(root):
        return f"run it first: {command}"
    known = [near] if near else study_words()
    return f"nor is there a conf/study/{root.name}.yaml to run{nearest(root.name, known)}"
