"""The frame of a track: the rows of its run folders and of its stored frame.

A row of a run folder takes precedence over a stored one. Columns are those of ``analysis.load.study`` without
``path`` and ``arm``, and

    curve     the validations of a run, JSON text: a list of [step, tokens, FLOPs, score]
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pandas as pd

from archbench.analysis.declared.tracks import Track
from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.stats.targets.steps_to_loss import validation_curve
from archbench.experiments.config import CONF
from archbench.experiments.tracking.results_frame import read_results

KEY = ["study", "cell", "digest", "seed"]
LEFT_OUT = ["path", "arm"]
"""Columns that depend on the machine, or are recomputed."""


def track_frame(track: Track, runs: Path) -> pd.DataFrame:
    """Return every run of a track, including tuning runs; empty without runs."""
    parts = [study_frame(runs, name) for name in (track.rates_folder, track.folder)]
    parts.append(stored_frame(track))
    parts = [part for part in parts if not part.empty]
    if not parts:
        return pd.DataFrame(columns=[*KEY, "status"])
    combined = pd.concat(parts, ignore_index=True)
    # A row of a run that has ended takes precedence over one of the same run that has not.
    combined = combined.assign(_open=combined["status"].isin(["incomplete", "unreadable", "preempted"]))
    combined = combined.sort_values("_open", kind="stable").drop_duplicates(KEY)
    return combined.drop(columns="_open").sort_values(
        [*KEY[:1], "task", "backbone", "digest", "seed"], ignore_index=True
    )


def study_frame(runs: Path, study: str) -> pd.DataFrame:
    """Return the runs of one study with their curves; empty without runs."""
    if not (runs / study).is_dir() or not any((runs / study).glob("*-*/s*")):
        return pd.DataFrame()
    frame, history = load_study(runs, study), load_history(runs, study)
    curves = dict(list(history[history["kind"] == "validation"].groupby("path")))
    texts = []
    for path, metric in zip(frame["path"], frame["metric"], strict=True):
        points = pd.DataFrame()
        if path in curves and metric is not None:
            points = validation_curve(curves[path], metric)
        texts.append(
            json.dumps([[p.step, p.tokens, p.flops, round(p.value, 6)] for p in points.itertuples()])
        )
    # The folder of all studies depends on the machine, and the file of rates is in it.
    commands = frame["command"].map(
        lambda command: shlex.join(
            a for a in shlex.split(command) if not a.startswith(("runs=", "study.tuned="))
        ),
        na_action="ignore",
    )
    return frame.assign(curve=texts, command=commands).drop(columns=LEFT_OUT)


def stored_frame(track: Track) -> pd.DataFrame:
    """Return the stored frame; empty if it is missing."""
    path = None if track.stored is None else CONF.parent / track.stored
    return read_results(path).to_pandas() if path is not None and path.exists() else pd.DataFrame()


def chosen(frame: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a frame that belong to run configurations of the current rules."""
    keys = set(zip(cells["cell"], cells["digest"], cells["seed"], strict=True))
    is_chosen = [key in keys for key in zip(frame["cell"], frame["digest"], frame["seed"], strict=True)]
    return frame[is_chosen]
