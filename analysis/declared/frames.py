"""The runs that records of claims and of published results name; each frame is read once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache
from pathlib import Path

import pandas as pd

from archbench.analysis.declared.scored_runs import scored_runs
from archbench.analysis.declared.study_frames import track_frame
from archbench.analysis.declared.tracks import read_track
from archbench.analysis.load.study import load_study
from archbench.experiments.tracking.results_frame import NEEDED, read_results


class Frames:
    """Frames of tracks and studies. Callers share them and must not change them."""

    def __init__(self, runs: Path, stored: Path | None) -> None:
        """Remember where the frames are.

        Args:
            runs: the folder of all studies.
            stored: the folder of stored frames; None to read only run folders.
        """
        self.runs, self.stored = runs, stored
        self.track = cache(self._track)
        self.study = cache(self._study)
        self._file = cache(self._read_file)

    def _track(self, name: str) -> pd.DataFrame:
        """Return the scored runs of a track, in run folders and stored; empty without runs."""
        track = read_track(name)
        if self.stored is None:
            track = replace(track, stored=None)
        frame = track_frame(track, self.runs)
        return scored_runs(track, frame) if len(frame) else frame

    def _study(self, name: str) -> pd.DataFrame:
        """Return the runs in the folder of a study; empty without the folder."""
        return load_study(self.runs, name) if (self.runs / name).is_dir() else pd.DataFrame()

    def declared(self, name: str) -> pd.DataFrame:
        """Return the runs of a study: stored ones, or those in its folder if only these count; maybe none."""
        if self.stored is None:
            return self.study(name)
        return self.file(name) if (self.stored / f"{name}.parquet").exists() else pd.DataFrame()

    def file(self, name: str, needed: Collection[str] = NEEDED) -> pd.DataFrame:
        """Return a stored frame. Raises DataError if it cannot be read or lacks a column of ``needed``."""
        return self._file(name, frozenset(needed))

    def _read_file(self, name: str, needed: frozenset[str]) -> pd.DataFrame:
        assert self.stored is not None
        return read_results(self.stored / f"{name}.parquet", needed).to_pandas()
