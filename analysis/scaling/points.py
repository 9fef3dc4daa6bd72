"""Points for scaling laws, from the runs of a study."""

from __future__ import annotations

import json

import pandas as pd

from archbench.analysis.stats.arms import finished

KEYS = ("task", "line", "likelihood", "metric", "seed")
POINT = ("size", "tokens", "flops", "loss")


def study_points(frame: pd.DataFrame, history: pd.DataFrame) -> pd.DataFrame:
    """Return the points of a study's complete runs: the validation at the end of each learning-rate decay.

    Columns: ``task line likelihood metric seed run`` and ``POINT``. One law is fitted to each line: a
    backbone, with its objective if there is more than one. The size is the number of active non-embedding
    parameters, without the LM head. Runs with a metric to be maximised are left out.
    """
    validations = dict(list(history[history["kind"] == "validation"].groupby("path")))
    objectives = frame.groupby(["task", "backbone"])["objective"].transform("nunique")
    lines = frame["backbone"].where(objectives == 1, frame["backbone"] + " " + frame["objective"])
    rows = []
    for run in frame.assign(line=lines)[finished(frame) & (frame["direction"] == "lower")].to_dict("records"):
        curve = validations.get(run["path"])
        if curve is None or run["metric"] not in curve:
            continue
        fractions = json.loads(run["decay_ends"])
        ends = [max(1, round(fraction * curve["step"].max())) for fraction in fractions]
        for point in curve[curve["step"].isin(ends)].to_dict("records"):
            rows.append(
                {key: run[key] for key in KEYS}
                | {"size": run["parameters_active"] - run["parameters_embedding"] - run["parameters_head"]}
                | {"tokens": point["tokens"], "flops": point["flops"], "loss": point[run["metric"]]}
                | {"run": run["path"]}
            )
    return pd.DataFrame(rows, columns=[*KEYS, *POINT, "run"])
