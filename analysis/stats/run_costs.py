"""Outcomes, costs and training stability of the runs of each arm, as rows of text."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from analysis.stats.arms import TASK_SCALE
from analysis.stats.intervals import mean_interval
from experiments.runtime.errors import RunError
from experiments.tracking.run_files import RunResult, read_result

FATES = ("complete", "diverged", "oom", "failed", "refused", "unreadable", "incomplete")
COST_HEAD = [
    "model", "task", "complete", "diverged", "out of memory", "failed", "refused", "unreadable",
    "unfinished", "hours", "FLOPs", "waiting for data", "compiling", "computing", "interruptions",
    "inexactly resumed",
]  # fmt: skip
COST_NOTE = (
    "hours: in training steps, over all restart segments. computing: the fraction of training and compile "
    "time that was neither waiting for data nor compiling. interruptions: how often runs were resumed. "
    "Evaluation, checkpointing, time in a queue and work lost by killed runs are not recorded."
)


def cost_rows(frame: pd.DataFrame) -> list[list[str]]:
    """Return the cells of ``COST_HEAD`` for each arm; ``-`` where no record has a number."""
    rows = []
    for (task, scale, arm), runs in frame.groupby([*TASK_SCALE, "arm"], sort=True):
        counts = runs["status"].value_counts()
        seconds = runs["training_seconds"]
        records = [_result(path) for path in runs["path"]]
        compiling = [r.training.compile_seconds if r and r.training else math.nan for r in records]
        sittings = [record.resume.sittings for record in records if record and record.resume]
        rows.append(
            [
                str(arm), f"{task}, {scale}",
                *(str(int(counts.get(fate, 0))) for fate in FATES),
                f"{seconds.sum() / 3600:.3f}", f"{runs['training_flops'].sum():.2e}".replace("e+", "e"),
                _share(runs["training_data_share"].tolist()),
                _share([c / (s + c) if s + c else math.nan for s, c in zip(seconds, compiling, strict=True)]),
                _share(
                    [
                        s * (1 - waiting) / (s + c) if s + c else math.nan
                        for s, waiting, c in zip(seconds, runs["training_data_share"], compiling, strict=True)
                    ]
                ),
                str(sum(sittings) - len(sittings)) if sittings else "-",
                str(int((runs["changed"] != "[]").sum())),
            ]
        )  # fmt: skip
    return rows


def _share(values: list[float]) -> str:
    """Return the mean of the finite values as a percentage."""
    mean = mean_interval([value for value in values if math.isfinite(value)]).mean
    return "-" if math.isnan(mean) else f"{mean:.1%}"


def _result(path: str) -> RunResult | None:
    """Return a run's result; None where it has none (yet), or where the frame did not come from a folder."""
    try:
        return read_result(Path(path) / "result.json")
    except RunError:
        return None  # a row of status unreadable


STABILITY_HEAD = [
    "model", "task", "gradient norm, median", "largest", "loss spikes", "spike score", "steps left out",
    "diverged",
]  # fmt: skip
STABILITY_NOTE = (
    "Gradient norms are those of the logged steps, before clipping. A loss spike is a step whose loss lies "
    "six standard deviations above the mean of the 128 before it; the spike score is their fraction of all "
    "steps. Steps are left out where loss or gradient is no finite number (trainer.non_finite=skip)."
)


def stability_rows(frame: pd.DataFrame, history: pd.DataFrame) -> list[list[str]]:
    """The cells of ``STABILITY_HEAD`` for each arm, over all its runs; ``-`` where nothing was recorded."""
    norms = history[history["kind"] == "train"]
    norms = norms if "grad_norm" in norms else norms.assign(grad_norm=math.nan)
    rows = []
    for (task, scale, arm), runs in frame.groupby([*TASK_SCALE, "arm"], sort=True):
        own = norms[norms["path"].isin(runs["path"])]["grad_norm"]
        own = own[own.map(math.isfinite)]
        known = runs[runs["loss_spikes"].notna() & (runs["training_steps"] > 0)]
        score = known["loss_spikes"].sum() / known["training_steps"].sum() if len(known) else math.nan
        rows.append(
            [
                str(arm), f"{task}, {scale}",
                *(["-", "-"] if own.empty else [f"{own.median():.3g}", f"{own.max():.3g}"]),
                _total(runs["loss_spikes"]), "-" if math.isnan(score) else f"{score:.2%}",
                _total(runs["skipped_steps"]), str(int((runs["status"] == "diverged").sum())),
            ]
        )  # fmt: skip
    return rows


def _total(counts: pd.Series) -> str:
    """The sum of the known ones."""
    return "-" if counts.isna().all() else str(int(counts.sum()))
