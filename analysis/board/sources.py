"""The frames of the results board: those of studies and tracks, with the submissions to them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from archbench.analysis.declared.scored_runs import scored_runs
from archbench.analysis.declared.study_frames import KEY
from archbench.analysis.declared.tracks import Track, read_track, track_names
from archbench.analysis.load.arm_names import arm_names
from archbench.experiments.config import CONF
from archbench.experiments.tracking.frame_columns import Json, columns
from archbench.experiments.tracking.results_frame import NEEDED, read_results

SUBMISSION = "submission"
"""Column with the name of the submission of a run; empty for a run of the project."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Runs that are compared with each other: those of a study or a track, and of its submissions."""

    name: str
    is_track: bool
    frame: pd.DataFrame

    @property
    def has_protocol(self) -> bool:
        """Return True if the runs follow the rules of a protocol."""
        return bool(self.frame["protocol"].notna().any())


def read_sources(docs: Path) -> list[Source]:
    """Return the sources that follow a protocol, then the others; of both tracks, then studies, by name.

    Args:
        docs: the folder with ``results/STUDY.parquet`` and ``submissions/NAME/results.parquet``.

    Raises:
        DataError: a frame cannot be read.
    """
    tracks = {track.folder: track for track in map(read_track, track_names())}
    tuning = {track.rates_folder for track in tracks.values()}
    paths = [path for path in sorted((docs / "results").glob("*.parquet")) if is_frame_of_runs(path)]
    paths += [CONF.parent / track.stored for track in tracks.values() if track.stored]
    frames = [with_all_columns(read_results(path).to_pandas()) for path in paths if path.exists()]
    kept = pd.MultiIndex.from_frame(pd.concat(frames)[KEY])
    for path in sorted(docs.glob("submissions/*/results.parquet")):
        frame = with_all_columns(read_results(path).to_pandas())
        is_new = ~pd.MultiIndex.from_frame(frame[KEY]).isin(kept)  # some submissions are of models of a study
        frames.append(submitted(frame[is_new], path.parent.name))
    runs = pd.concat(frames, ignore_index=True)
    sources = [
        source(str(study), rows, tracks.get(str(study)))
        for study, rows in runs.groupby("study")
        if study not in tuning
    ]
    return sorted(sources, key=lambda each: (not each.has_protocol, not each.is_track, each.name))


def is_frame_of_runs(path: Path) -> bool:
    """Return True for a frame with a row for each run; other frames hold speeds or points of a curve."""
    return {*NEEDED, "study"} <= {*pq.read_schema(path).names}


def with_all_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame, which older rules may have written, with the columns that it lacks, and models' names.

    Likelihood types are never ranked together on the board, whatever the study allows.
    """
    missing: dict[str, object] = {}
    for name, column in columns().items():
        if name not in frame and name not in ("path", "arm", "studies_differ"):
            missing[name] = "[]" if isinstance(column.kind, Json) else None
            if column.kind == "number":
                missing[name] = math.nan
    frame = frame.assign(**missing, allow_mixed=False, **{SUBMISSION: ""})
    return frame if "arm" in frame else frame.assign(arm=arm_names(frame.assign(path="")))


def submitted(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the runs of a submission, whose model has its name, so that no model of the project has it."""
    cell = frame["cell"] + f" of {name}"
    return frame.assign(backbone=name, arm=name, cell=cell, **{SUBMISSION: name})


def source(study: str, runs: pd.DataFrame, track: Track | None) -> Source:
    """Return the runs of one study. Those of a track have the scores of its rules."""
    if track is None:
        return Source(name=study, is_track=False, frame=runs.reset_index(drop=True))
    name = f"{track.name} track"
    return Source(name=name, is_track=True, frame=scored_runs(track, runs) if track.stored else runs)
