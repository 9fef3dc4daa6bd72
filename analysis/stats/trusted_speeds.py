"""Training speeds that a comparison may print: those of runs that other work did not disturb.

The seconds of a run are also those of the other work of its machine. The seeds of one model do the same
computation, so where they took different times, something else ran beside them, and beside the other models
of the study. ``benchmarks/text_speed.py`` measures speeds that can be compared: the models take turns.
"""

from __future__ import annotations

import pandas as pd

from archbench.analysis.load.scale_order import TASK_SCALE

SPREAD = 1.15
"""Largest ratio of the speeds of two seeds of a model that are taken as undisturbed."""
MEASURED = ["training_seconds", "training_tokens_per_second"]
"""Columns that depend on what else the machine did."""
CONDITIONS = ["device_name", "device_processor", "device_threads"]


def disturbed_studies(frame: pd.DataFrame) -> dict[str, str]:
    """Return the studies whose speeds are not compared, each with the reason."""
    speed = "training_tokens_per_second"
    if speed not in frame or frame[speed].notna().sum() < 2:
        return {}
    runs = frame[[c for c in ("study", *TASK_SCALE, "cell", "digest", *CONDITIONS, speed) if c in frame]]
    runs = runs[runs[speed].gt(0)]
    reasons = {}
    for study, of_study in runs.groupby("study") if "study" in runs else [("", runs)]:
        of_model = of_study.groupby([*TASK_SCALE, "cell", "digest"])[speed]
        spread = float((of_model.max() / of_model.min()).max())
        machines = of_study.groupby(TASK_SCALE)[[c for c in CONDITIONS if c in of_study]].nunique()
        if (machines > 1).any(axis=None):
            reasons[str(study)] = "models of one table ran on different processors or numbers of threads"
        elif spread > SPREAD:
            reasons[str(study)] = f"seeds of one model differ by a factor of up to {spread:.3g}"
    return reasons


def with_trusted_speeds(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the runs without the measured times of studies that other work disturbed."""
    studies = disturbed_studies(frame)
    if not studies:
        return frame
    disturbed = frame["study"].isin(studies) if "study" in frame else pd.Series(True, index=frame.index)
    columns = [column for column in MEASURED if column in frame]
    return frame.assign(**{column: frame[column].mask(disturbed) for column in columns})


def speed_warnings(frame: pd.DataFrame) -> list[str]:
    """Return a warning for the studies without speeds."""
    return [
        f"{f'{study}: ' if study else ''}speeds are not shown, as {reason} (other work on the machine)"
        for study, reason in disturbed_studies(frame).items()
    ]


def given(speed: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with a configured batch size, as opposed to the largest one that fits."""
    return speed[speed["batch_choice"] == "given"]
