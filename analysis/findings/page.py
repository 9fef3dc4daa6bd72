"""The page of findings: one table of claims and verdicts. A CSV file has the measurement of each claim."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import pandas as pd

from analysis.findings.verdicts import CONFIRMED, NOT_RUN, REFUTED, UNDECIDED, Finding
from analysis.stats.verdicts.solve_counts import COUNT_TEST

PAGE = """\
# Findings

{counts}
{figure}
{rows}

- *better* is confirmed if the 95% interval is above 0 and the difference is at least the smallest difference
  of interest. It is refuted if the full interval is below that difference.
- *equal* is confirmed if the interval is within the smallest difference of interest on both sides of 0. It is
  refuted if the full interval is outside on one side.
- Every other claim is *undecided*.

[Tests](statistics.md) are over seeds and not corrected for the number of claims. S: difference and interval
of solve rates. All models are small: at the sizes of the source a verdict may differ.

## Measurements

[findings.csv](findings/findings.csv) has for each claim both means, the difference with its interval, p,
test, number of seeds, smallest difference of interest, source, and the commands that train its runs. The
record of a claim (its link) was committed before the runs with test seeds. It has the setting, the outcome
that would refute the claim, what was known before, and what is not shown.

After the commands of a claim, `archbench findings claim=NAME --own-runs` decides it from the new runs.
`archbench findings out=docs` writes this page.
"""
ORDER = (CONFIRMED, REFUTED, UNDECIDED, NOT_RUN)


def markdown(findings: Sequence[Finding], figure: str | None) -> str:
    """Return the page. ``figure`` is the path of the figure of all claims, relative to the page."""
    counts = ", ".join(
        f"{sum(finding.verdict == verdict for finding in findings)} {verdict}" for verdict in ORDER
    )
    rows = ["| claim | relation | verdict | difference |", "|---|---|---|--:|"]
    for finding in in_order(findings):
        link = f"[{finding.claim.claim}](findings/{finding.name}.yaml)"
        size = difference(finding) + " S" * (finding.test == COUNT_TEST)
        rows.append(f"| {link} | {finding.claim.relation} | {finding.verdict} | {size} |")
    image = "" if figure is None else f"\n![Scores of each claim by seed]({figure})\n"
    return PAGE.format(counts=f"Of {len(findings)} claims: {counts}.", figure=image, rows="\n".join(rows))


def in_order(findings: Sequence[Finding]) -> list[Finding]:
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
    for finding in in_order(findings):
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
