"""The page of each registered claim: its verdict, the scores of its seeds, its record and its commands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from archbench.analysis.declared.frames import Frames
from archbench.analysis.declared.records import decisions, read_records
from archbench.analysis.figures.percent_axis import PercentAxis
from archbench.analysis.figures.style import REFERENCE_COLOUR
from archbench.analysis.findings.claims import Claim
from archbench.analysis.findings.figure import COLOURS
from archbench.analysis.findings.page import difference, sorted_by_verdict, unit
from archbench.analysis.findings.verdicts import Finding, decide_claim
from archbench.analysis.tables.columns import p_text

HEIGHTS = (16, 40)
"""Vertical position of the seeds of each side, in pixels."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """The scores of one of the two models."""

    label: str
    scores: list[float]
    mean: float
    colour: str
    y: int


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The scores of both models on one axis."""

    axis: PercentAxis
    sides: list[Side]


@dataclass(frozen=True, kw_only=True)
class ClaimEntry:
    """A claim as its page and the lists of claims show it."""

    finding: Finding
    models: tuple[str, str]
    workload: str

    @property
    def name(self) -> str:
        """Return the name of its record."""
        return self.finding.name

    @property
    def title(self) -> str:
        """Return the claim in one sentence."""
        return self.finding.claim.claim

    @property
    def verdict(self) -> str:
        """Return the verdict."""
        return self.finding.verdict

    @property
    def unit(self) -> str:
        """Return the unit of the scores."""
        return self.finding.unit

    @property
    def better(self) -> str:
        """Return which scores are better."""
        return "lower is better" if "bit" in self.finding.unit else "higher is better"

    @property
    def difference(self) -> str:
        """Return the difference with its interval; a dash if the claim was not tested."""
        return difference(self.finding)

    @property
    def answer(self) -> str:
        """Return what was measured, in a sentence."""
        finding, claim = self.finding, self.finding.claim
        if math.isnan(finding.difference):
            return f"{finding.reason or 'Its runs have not been trained'}."
        reason = f" {finding.reason}." if finding.reason else ""
        return (
            f"{self.models[0]} against {self.models[1]}: {self.difference} {unit(finding)}, + is better. "
            f"Claimed: {claim.relation}; differences from {claim.effect:g} are of interest.{reason}"
        )

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Return label and text of each part of the record."""
        finding, claim = self.finding, self.finding.claim
        tested = f"{finding.test}, p {p_text(finding.p)}" if finding.test and finding.p == finding.p else ""
        seeds = f"{min(map(len, finding.scores))} of {claim.seeds} for each model"
        facts = {
            "withdrawn": claim.withdrawn,
            "source": claim.source, "refuted by": claim.refuted_by, "setting": claim.setting,
            "evaluation": claim.test, "seeds": seeds, "test": tested, "known before": claim.known,
            "not shown": claim.not_shown,
        }  # fmt: skip
        return [(label, text) for label, text in facts.items() if text]

    @property
    def drawing(self) -> Drawing | None:
        """Return the scores of both models; None if one has none."""
        scores = self.finding.scores
        if not all(scores):
            return None
        colours = (COLOURS.get(self.verdict, REFERENCE_COLOUR), REFERENCE_COLOUR)
        sides = [
            Side(label=label, scores=values, mean=fmean(values), colour=colour, y=y)
            for label, values, colour, y in zip(self.models, scores, colours, HEIGHTS, strict=True)
        ]
        return Drawing(axis=PercentAxis.around([*scores[0], *scores[1]]), sides=sides)


def claim_entries(docs: Path) -> list[ClaimEntry]:
    """Return all claims by verdict, decided by the stored frames.

    Args:
        docs: the folder with ``findings/NAME.yaml`` and ``results/STUDY.parquet``.
    """
    stored = docs / "results"
    frames = Frames(runs=stored, stored=stored)  # there are no run folders in it
    findings = decisions(read_records(docs / "findings", Claim), decide_claim, frames)
    return [entry(finding) for finding in sorted_by_verdict(findings)]


def entry(finding: Finding) -> ClaimEntry:
    """Return the entry of a claim with its verdict."""
    claim = finding.claim
    model, other = (", ".join(side.values()) for side in (claim.model, claim.other))
    return ClaimEntry(finding=finding, models=(model, other), workload=claim.workload)


def about_model(entries: Sequence[ClaimEntry], model: str) -> list[ClaimEntry]:
    """Return the claims about a model."""
    return [each for each in entries if model in each.models]


def about_workload(entries: Sequence[ClaimEntry], workload: str) -> list[ClaimEntry]:
    """Return the claims that are tested on a workload."""
    return [each for each in entries if each.workload == workload]
