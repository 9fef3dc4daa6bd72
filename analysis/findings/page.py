"""The page of findings: one table of claims and verdicts, then each claim with what decides it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from analysis.findings.claims import EQUAL
from analysis.findings.verdicts import CONFIRMED, NOT_RUN, REFUTED, UNDECIDED, Finding
from analysis.stats.verdicts.solve_test import TEST as SOLVE_RATE
from analysis.tables.markdown import escaped

PREAMBLE = """\
# Findings

    archbench findings out=docs

writes this page from the records in `findings/` and the frames of the tracks and studies. Each record was
committed before the runs with test seeds that decide it. It says what would refute the claim at this size,
and the smallest difference of interest.

A claim that one model is better is *confirmed* where the 95% interval of the difference lies above 0 and
the difference is at least the smallest of interest, and *refuted* where the whole interval lies below the
smallest of interest. A claim that two models are equally good, marked "equality" in the table, is
*confirmed* where the whole interval lies within the smallest difference of interest on both sides of 0, so
that neither model is better by as much, and *refuted* where it lies beyond on one side. What is neither is
*undecided*.
Intervals are over seeds, by the tests of [the statistics page](statistics.md), and
are not corrected for the number of claims. Where seeds either solve a task or do not, the difference, its
interval and the smallest of interest are of the shares of seeds that solve it ("solve rate"), and not of the
means. The small figures show the difference
with its interval; the line is no difference, the shade what is below the smallest of interest. All models
are small: what is refuted here may well hold at the sizes of its source, and the other way round.
"""
ORDER = (CONFIRMED, REFUTED, UNDECIDED, NOT_RUN)


def markdown(findings: Sequence[Finding], figure: str | None) -> str:
    """Return the page. ``figure`` is the path of the drawing of all claims, from the page."""
    counts = [f"{sum(each.verdict == word for each in findings)} {word}" for word in ORDER]
    lines = [PREAMBLE, f"Of {len(findings)} claims: {', '.join(counts)}.", ""]
    if figure is not None:
        lines += [f"![Scores of each claim by seed]({figure})", ""]
    lines += ["| claim | verdict | difference | | seeds |", "|---|---|--:|---|--:|"]
    ordered = sorted(findings, key=lambda each: (ORDER.index(each.verdict), each.name))
    for each in ordered:
        seeds = f"{len(each.scores[0])}, {len(each.scores[1])}"
        link = f"[{each.claim.claim}](#{each.name.replace('_', '-')})"
        drawn = "" if difference(each) == "-" else f"![{difference(each)}](findings/{each.name}.svg)"
        verdict = f"{each.verdict} (equality)" if each.claim.relation == EQUAL else each.verdict
        lines.append(f"| {link} | {verdict} | {difference(each)} | {drawn} | {seeds} |")
    for each in ordered:
        lines += ["", *_section(each)]
    return "\n".join(lines) + "\n"


def difference(finding: Finding) -> str:
    """Return the difference with its interval; a dash where nothing was tested."""
    if math.isnan(finding.difference) or math.isnan(finding.low):
        return "-"
    return f"{finding.difference:+.3f} [{finding.low:.3f}, {finding.high:.3f}]"


def _section(finding: Finding) -> list[str]:
    claim, title = finding.claim, finding.name.replace("_", " ")
    equality = claim.relation == EQUAL
    lines = [f"## {title}", "", f"{claim.claim} **{finding.verdict.capitalize()}.**", ""]
    if finding.scores[0] and finding.scores[1]:
        lines.append(f"- {_scores(finding)}.")
    if finding.reason:
        words = "Not decided because" if finding.verdict == UNDECIDED else "Note"
        lines.append(f"- {words}: {escaped(finding.reason)}.")
    return [
        *lines,
        f"- Source: {claim.source}",
        f"- Setting: {claim.setting}",
        f"- Would refute it: {claim.refuted_by} Smallest difference of interest: {claim.effect:g}.",
        *[f"- Confirmed where the whole interval lies within ±{claim.effect:g} (equality)."] * equality,
        f"- Known before: {claim.known}",
        f"- Not shown: {claim.not_shown}",
        "- To train and judge it anew:",
        "",
        *(f"      {command}" for command in claim.training_commands),
        f"      archbench findings claim={finding.name} --own-runs",
    ]


def _scores(finding: Finding) -> str:
    """Return the means of both sides, and their difference with its test."""
    sides = zip((finding.claim.model, finding.claim.other), finding.scores, strict=True)
    means = ", ".join(f"{', '.join(where.values())} {fmean(values):.3f}" for where, values in sides)
    found = f"Scores ({finding.unit}, means over seeds): {means}"
    if difference(finding) == "-":
        return found
    p = "p < 0.0001" if finding.p < 1e-4 else f"p = {finding.p:.4f}"
    tested = "" if math.isnan(finding.p) else f", {p} ({finding.test})"
    of = " of the shares of seeds that solve it" if finding.test == SOLVE_RATE else ""
    return f"{found}; difference{of} {difference(finding)}{tested}"
