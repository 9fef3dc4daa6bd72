"""The bridge from probes to text: does the order of models on a small workload predict it on larger text?

Both inputs are frames of ``analysis.load.study`` with the same models. A text has multiple targets: its
score, and its slices of recall (``analysis.stats.text_slices``), in bits per token. Models are compared
within a likelihood type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from analysis.stats.arms import finished
from analysis.stats.ranking.rank_correlation import Correlation, rank_correlation
from analysis.stats.text_slices import RECALL, run_slices
from analysis.stats.verdicts.solve_counts import holm

WHOLE = "whole text"
"""The target that is the score of the text."""
COLUMNS = ["task", "likelihood", "target", *Correlation.__dataclass_fields__, "p_corrected"]

Scores = Mapping[str, list[float]]
"""Scores of the seeds of each model; higher is better."""


def bridge(probes: pd.DataFrame, text: pd.DataFrame) -> pd.DataFrame:
    """Return the rank correlation over models of each workload with each target of a text.

    The columns are ``COLUMNS``. ``task`` is a workload of ``probes``, ``target`` one of ``text``. Models are
    identified by their backbone; models without a finished run in both frames are left out, and targets with
    fewer than ``MIN_MODELS`` models also. ``p_corrected`` is Holm's, over the workloads of a target. Rows are
    sorted by target, then by rho in descending order.

    Args:
        text: runs of one task at one scale.

    Raises:
        ValueError: the text has more than one task or scale.
    """
    if len(tables := text[["task", "scale"]].drop_duplicates()) != 1:
        raise ValueError(f"the text has {len(tables)} tasks or scales, and a bridge ends at one: choose one")
    small = {str(task): model_scores(runs) for task, runs in probes.groupby("task", sort=True)}
    rows: list[dict[str, object]] = []
    for (likelihood, target), scores in text_targets(text).items():
        correlations = {task: rank_correlation(probe_scores, scores) for task, probe_scores in small.items()}
        computed = {task: result for task, result in correlations.items() if result is not None}
        tested = [task for task, result in computed.items() if not math.isnan(result.p)]
        corrected = dict(zip(tested, holm([computed[task].p for task in tested]), strict=True))
        rows += [
            {"task": task, "likelihood": likelihood, "target": target, **vars(result)}
            | {"p_corrected": corrected.get(task, math.nan)}
            for task, result in sorted(computed.items(), key=lambda item: -np.nan_to_num(item[1].rho, nan=-2))
        ]
    return pd.DataFrame(rows, columns=COLUMNS).astype({"p_corrected": float})


def model_scores(runs: pd.DataFrame) -> Scores:
    """Return the scores of the finished runs of each backbone; higher is better."""
    good = runs[finished(runs)]
    sign = good["direction"].map({"higher": 1.0, "lower": -1.0})
    return {str(name): scores.tolist() for name, scores in (sign * good["score"]).groupby(good["backbone"])}


def text_targets(text: pd.DataFrame) -> dict[tuple[str, str], Scores]:
    """Return the scores of the models by likelihood type and target; the full text comes first."""
    targets: dict[tuple[str, str], Scores] = {}
    for likelihood, runs in text[finished(text)].groupby("likelihood", sort=True):
        targets[str(likelihood), WHOLE] = model_scores(runs)
        slices = run_slices(runs)
        backbone = slices["path"].map(dict(zip(runs["path"], runs["backbone"], strict=True)))
        for name, rows in slices[slices["by"] == RECALL].groupby("slice", sort=False):
            scores = (-rows["score"]).groupby(backbone[rows.index])
            targets[str(likelihood), str(name)] = {str(model): s.tolist() for model, s in scores}
    return targets
