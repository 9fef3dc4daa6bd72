"""The page of findings: one table of claims and verdicts, then the measurement behind each."""

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

{counts}
{figure}
{rows}

Each record was committed before the runs with test seeds that decide it. A claim that one model is better
is *confirmed* where the 95% interval lies above 0 and the difference is at least the smallest of interest,
and *refuted* where the whole interval lies below the smallest of interest. An *equality* is confirmed where
the whole interval lies within the smallest difference of interest on both sides of 0, and refuted where it
lies beyond on one side. Everything else is *undecided*. [Tests](statistics.md) are over seeds and not
corrected for the number of claims; where a test is of solve rates, so are the difference and its interval.
All models are small: at the sizes of the source a verdict may differ.

## Claims

A record has the setting, what would refute the claim, what was known before, and what is not shown. After
the commands of a claim, `archbench findings claim=NAME --own-runs` decides it from the new runs. `archbench
findings out=docs` writes this page.
"""
ORDER = (CONFIRMED, REFUTED, UNDECIDED, NOT_RUN)


def markdown(findings: Sequence[Finding], figure: str | None) -> str:
    """Return the page. ``figure`` is the path of the drawing of all claims, from the page."""
    counts = ", ".join(f"{sum(each.verdict == word for each in findings)} {word}" for word in ORDER)
    ordered = sorted(findings, key=lambda each: (ORDER.index(each.verdict), each.name))
    rows = "\n".join(["| claim | verdict | difference |", "|---|---|--:|", *map(_row, ordered)])
    image = "" if figure is None else f"\n![Scores of each claim by seed]({figure})\n"
    page = PREAMBLE.format(counts=f"Of {len(findings)} claims: {counts}.", figure=image, rows=rows)
    return "\n".join([page, *map(_section, ordered)])


def _row(finding: Finding) -> str:
    link = f"[{finding.claim.claim}](#{finding.name.replace('_', '-')})"
    equality = " (equality)" if finding.claim.relation == EQUAL else ""
    return f"| {link} | {finding.verdict}{equality} | {difference(finding)} |"


def difference(finding: Finding) -> str:
    """Return the difference with its interval; a dash where nothing was tested."""
    if math.isnan(finding.difference) or math.isnan(finding.low):
        return "-"
    return f"{finding.difference:+.3f} [{finding.low:.3f}, {finding.high:.3f}]"


def _section(finding: Finding) -> str:
    """Return the source of a claim, what was compared and measured, the verdict and the commands."""
    claim = finding.claim
    commands = "".join(f"    {command}\n" for command in claim.training_commands)
    reason = f" ({escaped(finding.reason)})" if finding.reason else ""
    return (
        f"### {finding.name.replace('_', ' ')}\n\n"
        f"{claim.source} [Record](findings/{finding.name}.yaml). {_compared(finding)} "
        f"Smallest difference of interest {claim.effect:g}: **{finding.verdict}**{reason}.\n\n{commands}"
    )


def _compared(finding: Finding) -> str:
    """Return both models with their means, and the difference with its test."""
    claim = finding.claim
    names = [", ".join(where.values()) for where in (claim.model, claim.other)]
    if not all(finding.scores):
        return f"{' against '.join(names)} on {claim.workload}."
    sides = [f"{name} {fmean(values):.3f}" for name, values in zip(names, finding.scores, strict=True)]
    test = f", {claim.test}" if claim.test else ""
    unit = finding.unit[:1].upper() + finding.unit[1:]
    means = f"{unit} on {claim.workload}{test}, {_seeds(finding)}: {' against '.join(sides)}"
    if difference(finding) == "-":
        return f"{means}."
    p = "p < 0.0001" if finding.p < 1e-4 else f"p = {finding.p:.4f}"
    tested = "" if math.isnan(finding.p) else f", {p} ({finding.test})"
    of = " in solve rate" if finding.test == SOLVE_RATE else ""
    return f"{means}; difference{of} {difference(finding)}{tested}."


def _seeds(finding: Finding) -> str:
    """Return the number of seeds, of both models where they differ."""
    return " and ".join(dict.fromkeys(str(len(values)) for values in finding.scores)) + " seeds"
