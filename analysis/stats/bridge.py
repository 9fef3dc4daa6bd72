"""The bridge from probes to text: does the order of models on a small workload predict it on larger text?

Both sides are frames of ``analysis.load.study`` with the same models. A text has several targets: its score,
and its slices of recall (``analysis.stats.text_slices``), in bits per token. Models of one likelihood type
are compared, as their scores on text are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from analysis.stats.arms import finished
from analysis.stats.ranking.rank_correlation import Correlation, rank_correlation
from analysis.stats.text_slices import RECALL, run_slices
from analysis.stats.verdicts.solve_test import holm

WHOLE = "whole text"
"""The target that is the score of the text."""
COLUMNS = ["task", "likelihood", "target", *Correlation.__dataclass_fields__, "p_corrected"]

Scores = Mapping[str, list[float]]
"""Scores of the seeds of each model, more being better."""


def bridge(probes: pd.DataFrame, text: pd.DataFrame) -> pd.DataFrame:
    """Return the rank correlation over models of each workload with each target of a text.

    The columns are ``COLUMNS``. ``task`` is a workload of ``probes``, ``target`` one of ``text``. Models are
    told by their backbone; those without a finished run on one side are left out, and so are targets of too
    few models. ``p_corrected`` is Holm's, over the workloads of a target. Rows are in order of target, then
    of rho.

    Args:
        text: of one task at one scale. Raises ValueError for more.
    """
    if len(places := text[["task", "scale"]].drop_duplicates()) != 1:
        raise ValueError(f"the text has {len(places)} tasks or scales, and a bridge ends at one: choose one")
    small = {str(task): model_scores(runs) for task, runs in probes.groupby("task", sort=True)}
    rows: list[dict[str, object]] = []
    for (likelihood, target), scores in text_targets(text).items():
        found = {task: rank_correlation(own, scores) for task, own in small.items()}
        known = {task: c for task, c in found.items() if c is not None}
        tested = [task for task, c in known.items() if not math.isnan(c.p)]
        corrected = dict(zip(tested, holm([known[task].p for task in tested]), strict=True))
        rows += [
            {"task": task, "likelihood": likelihood, "target": target, **vars(c)}
            | {"p_corrected": corrected.get(task, math.nan)}
            for task, c in sorted(known.items(), key=lambda item: -_or_least(item[1].rho))
        ]
    return pd.DataFrame(rows, columns=COLUMNS).astype({"p_corrected": float})


def _or_least(rho: float) -> float:
    return -2.0 if math.isnan(rho) else rho


def model_scores(runs: pd.DataFrame) -> Scores:
    """Return the scores of the finished runs of each backbone, more being better."""
    good = runs[finished(runs)]
    sign = good["direction"].map({"higher": 1.0, "lower": -1.0})
    return {str(name): own.tolist() for name, own in (sign * good["score"]).groupby(good["backbone"])}


def text_targets(text: pd.DataFrame) -> dict[tuple[str, str], Scores]:
    """Return the scores of the models by likelihood type and target, the whole text first."""
    found: dict[tuple[str, str], Scores] = {}
    for likelihood, runs in text[finished(text)].groupby("likelihood", sort=True):
        found[str(likelihood), WHOLE] = model_scores(runs)
        slices = run_slices(runs)
        backbone = slices["path"].map(dict(zip(runs["path"], runs["backbone"], strict=True)))
        for name, own in slices[slices["by"] == RECALL].groupby("slice", sort=False):
            scores = (-own["score"]).groupby(backbone[own.index])
            found[str(likelihood), str(name)] = {str(model): s.tolist() for model, s in scores}
    return found
