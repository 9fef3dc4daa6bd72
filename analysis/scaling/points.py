"""Points for scaling laws, from the runs of a study."""

from __future__ import annotations

import json

import pandas as pd

from analysis.stats.arms import finished

KEYS = ("task", "line", "likelihood", "metric", "seed")
POINT = ("size", "tokens", "flops", "loss")


def study_points(frame: pd.DataFrame, history: pd.DataFrame) -> pd.DataFrame:
    """The points of a study's complete runs: the validation at the end of each decay of the learning rate.

    Columns: ``task line likelihood metric seed run`` and ``POINT``. A line is what one law is fitted to: a
    backbone, with its objective where there are several. The size is the active body: parameters that
    a token uses, without embedding and head. Runs whose metric is to be maximised are left out.
    """
    validations = dict(list(history[history["kind"] == "validation"].groupby("path")))
    objectives = frame.groupby(["task", "backbone"])["objective"].transform("nunique")
    lines = frame["backbone"].where(objectives == 1, frame["backbone"] + " " + frame["objective"])
    rows = []
    for run in frame.assign(line=lines)[finished(frame) & (frame["direction"] == "lower")].to_dict("records"):
        curve = validations.get(run["path"])
        if curve is None or run["metric"] not in curve:
            continue
        shares = json.loads(run["decay_ends"])
        ends = [max(1, round(share * curve["step"].max())) for share in shares]
        for point in curve[curve["step"].isin(ends)].to_dict("records"):
            rows.append(
                {key: run[key] for key in KEYS}
                | {"size": run["parameters_active"] - run["parameters_embedding"] - run["parameters_head"]}
                | {"tokens": point["tokens"], "flops": point["flops"], "loss": point[run["metric"]]}
                | {"run": run["path"]}
            )
    return pd.DataFrame(rows, columns=[*KEYS, *POINT, "run"])
