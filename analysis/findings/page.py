"""The page of findings: claims by verdict. A CSV file has the measurement of each claim."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import pandas as pd

from archbench.analysis.declared.records import NOT_RUN, UNDECIDED
from archbench.analysis.findings.claims import BETTER
from archbench.analysis.findings.verdicts import CONFIRMED, REFUTED, WITHDRAWN, Finding
from archbench.analysis.stats.verdicts.solve_counts import COUNT_TEST
from archbench.experiments.runtime.console import plural

PAGE = """\
# Findings

{counts}
{figure}
{sections}
## Verdicts

- ↑, the first model is better: confirmed if the 95% interval is above 0 and the difference is at least the
  smallest difference of interest; refuted if the full interval is below that difference.
- =, the models are equal: confirmed if the interval is within the smallest difference of interest on both
  sides of 0; refuted if the full interval is outside on one side.
- In both cases undecided if the order depends on the test documents or on tuning: the second-best setting of
  the better model does not beat the best one of the other on the tuning seeds. Runs of studies by protocol
  1.0 have a record of both; those of the CPU track only of tuning, with rates half a decade apart on one
  seed.

A claim is withdrawn where its runs do not answer it by the rules of [protocol 1.0](statistics.md): a better
learning rate of a model is known, neither model is better than a trivial baseline, or models of different
families are compared on 1M bytes of text at one budget with 1,024 tokens per step.

[Tests](statistics.md) are over seeds and not corrected for the number of claims. All models are small: at the
sizes of the source a verdict may differ.

The record of a claim (its link) was committed before the runs with test seeds. It has the setting, the
outcome that would refute the claim, what was known before, and what is not shown.
[findings.csv](findings/findings.csv) has all measurements and the commands that train the runs; after them,
`archbench findings claim=NAME --own-runs` decides a claim from the new runs. `archbench findings out=docs`
writes this page.
"""
ORDER = (CONFIRMED, REFUTED, UNDECIDED, NOT_RUN, WITHDRAWN)


def markdown(findings: Sequence[Finding], figure: str | None) -> str:
    """Return the page. ``figure`` is the path of the figure of all claims, relative to the page."""
    ordered = sorted_by_verdict(findings)
    by_verdict = {verdict: [f for f in ordered if f.verdict == verdict] for verdict in ORDER}
    counts = ", ".join(f"{len(group)} {verdict}" for verdict, group in by_verdict.items() if group)
    image = (
        ""
        if figure is None
        else f"\n![Difference of each claim with its interval, by verdict]({figure})\n"
        "\nA point is a claim: the measured difference with its 95% interval, in units of the smallest\n"
        "difference of interest; grey band: too small to matter. Squares: claims that two models are equal.\n"
    )
    sections = [
        f"## {verdict.capitalize()}\n\n" + "\n".join(map(item, group)) + "\n"
        for verdict, group in by_verdict.items()
        if group
    ]
    return PAGE.format(
        counts=f"Of {plural(len(findings), 'claim')} of the literature: {counts}.", figure=image,
        sections="\n".join(sections),
    )  # fmt: skip


def item(finding: Finding) -> str:
    """Return the line of a claim: what is claimed, and the difference in the unit of the score."""
    arrow = "↑" if finding.claim.relation == BETTER else "="
    line = f"- {arrow} [{finding.claim.claim}](findings/{finding.name}.yaml)"
    size = difference(finding)
    line = line if size == "-" else f"{line} {size} {unit(finding)}"
    if not finding.reason or finding.verdict not in (UNDECIDED, WITHDRAWN):
        return line
    return f"{line}. {finding.reason[0].upper()}{finding.reason[1:].rstrip('.')}."


def unit(finding: Finding) -> str:
    """Return the unit of the difference of a claim."""
    return "of the solve rates" if finding.test == COUNT_TEST else finding.unit


def sorted_by_verdict(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings by verdict, then by name."""
    return sorted(findings, key=lambda finding: (ORDER.index(finding.verdict), finding.name))


def difference(finding: Finding) -> str:
    """Return the difference with its interval; a dash if the claim was not tested."""
    if math.isnan(finding.difference) or math.isnan(finding.low):
        return "-"
    return f"{finding.difference:+.3f} [{finding.low:.3f}, {finding.high:.3f}]"


def measurements(findings: Sequence[Finding]) -> pd.DataFrame:
    """Return a row for each claim: what was compared and measured, the verdict and the commands."""
    rows = []
    for finding in sorted_by_verdict(findings):
        claim, p = finding.claim, finding.p
        means = [f"{fmean(scores):.3f}" if scores else "" for scores in finding.scores]
        values = (finding.difference, finding.low, finding.high)
        differences = ["" if math.isnan(value) else f"{value:.3f}" for value in values]
        row = {
            "name": finding.name, "claim": claim.claim, "relation": claim.relation,
            "verdict": finding.verdict, "reason": finding.reason, "task": claim.workload,
            "evaluation": claim.test, "metric": finding.unit, "seeds": min(map(len, finding.scores)),
            "model": ", ".join(claim.model.values()), "model_mean": means[0],
            "other": ", ".join(claim.other.values()), "other_mean": means[1],
            **dict(zip(("difference", "low", "high"), differences, strict=True)),
            "p": "" if math.isnan(p) else "<0.0001" if p < 1e-4 else f"{p:.4f}", "test": finding.test,
            "smallest_difference": f"{claim.effect:g}", "source": claim.source,
            "commands": " && ".join(claim.training_commands),
        }  # fmt: skip
        rows.append(row)
    return pd.DataFrame(rows)
