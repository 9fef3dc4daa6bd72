"""The paired bootstrap over documents: does a verdict on a text hold for other documents of its kind?

The test over seeds asks whether other seeds would give the same order on the same test text. A verdict on a
text also needs that other test documents would: documents are drawn with replacement, the same ones for both
models (``scipy.stats.bootstrap``, percentile interval). The scores of a document are means over seeds.

Shapes: G documents, or groups of them if there are more than ``experiments.tasks.metrics.DOCUMENTS``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy import stats

from archbench.analysis.stats.verdicts.family import LEVEL
from archbench.analysis.stats.verdicts.pair_errors import Array
from archbench.analysis.stats.verdicts.verdict import BETTER, UNDECIDED, WORSE, Verdict

RESAMPLES = 4000
DEPENDS_ON_DOCUMENTS = "depends on the documents"
"""Reason if a verdict over seeds does not hold for other documents."""
NO_DOCUMENTS = "no scores of documents"
"""Reason if two models have no scores of the same documents."""


def document_totals(runs: pd.DataFrame) -> dict[str, Array]:
    """Return bits and bytes of each document (G, 2), averaged over seeds, for each model.

    Models without scores of documents are left out, such as those of older frames without the column.

    Args:
        runs: runs of the models of one task, on the same data.
    """
    totals: dict[str, Array] = {}
    if "documents" not in runs:
        return totals
    for model, model_runs in runs.groupby("arm"):
        by_seed = [np.array(json.loads(text)) for text in model_runs["documents"].dropna()]
        if len(by_seed) == len(model_runs) and len({part.shape for part in by_seed}) == 1:
            totals[str(model)] = np.mean(by_seed, axis=0)
    return totals


def document_interval(better_G2: Array, worse_G2: Array) -> tuple[float, float]:
    """Return the 95% interval over documents of the second model's bits per byte minus the first one's."""

    def difference(bits_a: Array, bytes_a: Array, bits_b: Array, bytes_b: Array, axis: int = -1) -> Array:
        return np.asarray(bits_b.sum(axis) / bytes_b.sum(axis) - bits_a.sum(axis) / bytes_a.sum(axis))

    interval = stats.bootstrap(
        (*better_G2.T, *worse_G2.T), difference, paired=True, vectorized=True, n_resamples=RESAMPLES,
        confidence_level=1 - LEVEL, method="percentile", rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    return float(interval.low), float(interval.high)


def hold_for_documents(verdict: Verdict, totals: Mapping[str, Array]) -> Verdict:
    """Return a verdict on a text, undecided if the order of both models depends on the documents.

    Args:
        verdict: of the test over seeds.
        totals: from ``document_totals``.
    """
    if verdict.verdict not in (BETTER, WORSE):
        return verdict
    better, worse = verdict.model, verdict.other
    if verdict.verdict == WORSE:
        better, worse = worse, better
    parts = [totals[name] for name in (better, worse) if name in totals]
    if not parts:  # the score is of something else, such as a held-out variant
        return verdict
    if len(parts) < 2 or parts[0].shape != parts[1].shape or len(parts[0]) < 2:
        return replace(verdict, verdict=UNDECIDED, reason=NO_DOCUMENTS)
    low, _ = document_interval(*parts)
    return verdict if low > 0 else replace(verdict, verdict=UNDECIDED, reason=DEPENDS_ON_DOCUMENTS)
