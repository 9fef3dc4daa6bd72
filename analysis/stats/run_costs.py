"""Outcomes, costs and training stability of the runs of each arm, as rows of text."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from archbench.analysis.load.scale_order import TASK_SCALE, scale_groups, task_label
from archbench.analysis.stats.grid import Grid
from archbench.analysis.stats.intervals import mean_interval
from archbench.experiments.runtime.errors import RunError
from archbench.experiments.tracking.run_files import RunResult, read_result

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


def cost_grid(frame: pd.DataFrame) -> Grid:
    """Return outcomes and costs of the runs of each arm; ``-`` if no record has a value."""
    rows = []
    for (task, scale, model), runs in scale_groups(frame, [*TASK_SCALE, "arm"]):
        counts = runs["status"].value_counts()
        seconds = runs["training_seconds"]
        records: list[RunResult | None] = []
        for path in runs["path"]:  # frames that were not loaded from folders have no results
            try:
                records.append(read_result(Path(path) / "result.json"))
            except RunError:  # the row has the status unreadable
                records.append(None)
        compiling = [r.training.compile_seconds if r and r.training else math.nan for r in records]
        segments = [record.resume.sittings for record in records if record and record.resume]
        rows.append(
            [
                str(model), task_label(task, scale),
                *(str(int(counts.get(status, 0))) for status in FATES),
                f"{seconds.sum() / 3600:.3f}", f"{runs['training_flops'].sum():.2e}".replace("e+", "e"),
                _share(runs["training_data_share"].tolist()),
                _share([c / (s + c) if s + c else math.nan for s, c in zip(seconds, compiling, strict=True)]),
                _share(
                    [
                        s * (1 - waiting) / (s + c) if s + c else math.nan
                        for s, waiting, c in zip(seconds, runs["training_data_share"], compiling, strict=True)
                    ]
                ),
                str(sum(segments) - len(segments)) if segments else "-",
                str(int((runs["changed"] != "[]").sum())),
            ]
        )  # fmt: skip
    return Grid(head=COST_HEAD, rows=rows, note=COST_NOTE)


def _share(values: list[float]) -> str:
    """Return the mean of the finite values as a percentage."""
    mean = mean_interval([value for value in values if math.isfinite(value)]).mean
    return "-" if math.isnan(mean) else f"{mean:.1%}"


STABILITY_HEAD = [
    "model", "task", "gradient norm, median", "largest", "loss spikes", "spike score", "steps left out",
    "diverged",
]  # fmt: skip
STABILITY_NOTE = (
    "Gradient norms are those of the logged steps, before clipping. A loss spike is a step whose loss lies "
    "six standard deviations above the mean of the 128 before it; the spike score is their fraction of all "
    "steps. Steps are left out where loss or gradient is no finite number (trainer.non_finite=skip)."
)


def stability_grid(frame: pd.DataFrame, history: pd.DataFrame) -> Grid:
    """Return gradient norms and loss spikes of the runs of each arm; ``-`` if no value was recorded."""
    norms = history[history["kind"] == "train"]
    norms = norms if "grad_norm" in norms else norms.assign(grad_norm=math.nan)
    rows = []
    for (task, scale, model), runs in scale_groups(frame, [*TASK_SCALE, "arm"]):
        finite = norms[norms["path"].isin(runs["path"])]["grad_norm"]
        finite = finite[finite.map(math.isfinite)]
        spikes, skipped = (
            "-" if runs[column].isna().all() else str(int(runs[column].sum()))
            for column in ("loss_spikes", "skipped_steps")
        )
        with_spikes = runs[runs["loss_spikes"].notna() & (runs["training_steps"] > 0)]
        score = (
            with_spikes["loss_spikes"].sum() / with_spikes["training_steps"].sum()
            if len(with_spikes)
            else math.nan
        )
        rows.append(
            [
                str(model), task_label(task, scale),
                *(["-", "-"] if finite.empty else [f"{finite.median():.3g}", f"{finite.max():.3g}"]),
                spikes, "-" if math.isnan(score) else f"{score:.2%}", skipped,
                str(int((runs["status"] == "diverged").sum())),
            ]
        )  # fmt: skip
    return Grid(head=STABILITY_HEAD, rows=rows, note=STABILITY_NOTE)
