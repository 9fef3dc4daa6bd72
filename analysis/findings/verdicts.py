"""Verdicts on claims: confirmed, refuted or undecided, from the runs that a record names."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pandas as pd

from archbench.analysis.comparison import Comparison
from archbench.analysis.declared.frames import Frames
from archbench.analysis.declared.records import NOT_RUN, UNDECIDED
from archbench.analysis.declared.scored_runs import with_score
from archbench.analysis.declared.selection import select
from archbench.analysis.findings.claims import BETTER, Claim
from archbench.analysis.stats.arms import finished, mixed_data
from archbench.analysis.stats.pairs import verdict_of
from archbench.analysis.stats.verdicts.documents import DEPENDS_ON_DOCUMENTS, NO_DOCUMENTS
from archbench.analysis.stats.verdicts.tuning import DEPENDS_ON_TUNING
from archbench.analysis.stats.verdicts.verdict import NO_SPREAD

CONFIRMED, REFUTED, WITHDRAWN = "confirmed", "refuted", "withdrawn"
SIDES = ("model", "other")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A claim with its measurements and verdict."""

    name: str
    claim: Claim
    verdict: str
    """``confirmed``, ``refuted``, ``undecided``, ``not run`` or ``withdrawn``."""
    scores: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    """Scores of the seeds, of ``claim.model`` and of ``claim.other``."""
    unit: str = ""
    difference: float = math.nan
    """Difference of the means, or of solve rates (see ``test``); positive if ``claim.model`` is better."""
    low: float = math.nan
    high: float = math.nan
    """Ends of the 95% interval of the difference."""
    p: float = math.nan
    test: str = ""
    reason: str = ""
    """Reason why the claim was not tested, or why it is undecided or withdrawn."""


def runs_of(claim: Claim, frames: Frames) -> pd.DataFrame:
    """Return the runs of the workload of a claim, with ``arm`` ``model`` or ``other``.

    Raises:
        DataError: a frame cannot be read, or lacks a column that the record names.
    """
    if claim.track:
        frame = frames.track(claim.track)
    else:
        frame = frames.declared(claim.frame)
    if frame.empty:
        return frame
    frame = frame[frame["task"] == claim.workload]
    if claim.test:
        frame = with_score(frame, frame["task"].notna(), claim.test)
    parts = [select(frame, getattr(claim, role)).assign(arm=role) for role in SIDES]
    # The claim compares its two models, regardless of the study's baseline.
    return pd.concat(parts, ignore_index=True).assign(baseline=None)


def decide_claim(name: str, claim: Claim, frames: Frames) -> Finding:
    """Return the verdict on a claim; a withdrawn one has no verdict, and keeps its measurement.

    Raises DataError as ``runs_of``.
    """
    finding = judge(name, claim, runs_of(claim, frames))
    if not claim.withdrawn:
        return finding
    return replace(finding, verdict=WITHDRAWN, reason=claim.withdrawn)


def judge(name: str, claim: Claim, runs: pd.DataFrame) -> Finding:
    """Return the verdict on a claim by its runs.

    A claim of ``better`` is confirmed if the 95% interval of the difference is above 0 and the difference is
    at least ``claim.effect``, and refuted if the full interval is below ``claim.effect``. A claim of
    ``equal`` is confirmed if the interval is within plus or minus the effect, and refuted if it is entirely
    outside. Otherwise the verdict is undecided, and also where the order of the two models depends on their
    tuning or on the documents (rules of protocol 1.0). The test is that of ``analysis.stats.verdicts`` for
    two models; verdicts are not corrected for the number of claims.

    Args:
        name: name of the record.
        claim: the record.
        runs: from ``runs_of``.
    """
    if runs.empty or set(runs["arm"]) != set(SIDES) or not (runs["status"] == "complete").any():
        return Finding(name=name, claim=claim, verdict=NOT_RUN)
    done = runs[runs["status"] == "complete"]
    scores, other_scores = (done.loc[done["arm"] == role, "score"].dropna().tolist() for role in SIDES)
    unit = str(done["metric"].iloc[0]).replace("_", " ")
    finding = Finding(name=name, claim=claim, scores=(scores, other_scores), unit=unit, verdict=UNDECIDED)
    if (few := min(len(scores), len(other_scores))) < claim.seeds:
        verb = "has" if few == 1 else "have"
        return replace(finding, reason=f"{few} of {claim.seeds} seeds {verb} ended")
    pair = verdict_of(Comparison(runs).pairs, *SIDES)
    if pair is None:
        return replace(finding, reason=_why_not_compared(runs))
    low, high, difference = float(pair["low"]), float(pair["high"]), float(pair["difference"])
    reason = pair["reason"] if isinstance(pair["reason"], str) else ""
    if reason == NO_SPREAD:  # all seeds agree on both sides: the interval is a point
        low = high = difference
    if claim.relation == BETTER:
        confirmed, refuted = low > 0 and difference >= claim.effect, high < claim.effect
    else:
        confirmed = -claim.effect < low and high < claim.effect
        refuted = low > claim.effect or high < -claim.effect
    verdict = CONFIRMED if confirmed else REFUTED if refuted else UNDECIDED  # undecided if they are NaN
    if reason in (DEPENDS_ON_TUNING, DEPENDS_ON_DOCUMENTS, NO_DOCUMENTS):
        verdict = UNDECIDED
    return replace(
        finding, verdict=verdict, difference=difference, low=low, high=high, p=float(pair["p"]),
        test=str(pair["test"]), reason=reason,
    )  # fmt: skip


def _why_not_compared(runs: pd.DataFrame) -> str:
    """Return the reason why ``pair_verdicts`` has no pair of the two models of a claim."""
    if mixed_data(runs):
        return "the runs saw different data"
    if not finished(runs).all():
        return "runs are missing, and the mean of the remaining ones would favour their model"
    if runs["likelihood"].nunique(dropna=False) > 1:
        return "their likelihood types cannot be compared"
    return "their metrics differ"
