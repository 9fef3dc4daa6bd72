"""The figure of all claims: the difference that each claims, with its interval, by verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from archbench.analysis.declared.records import UNDECIDED
from archbench.analysis.figures.style import PALETTE, REFERENCE_COLOUR
from archbench.analysis.findings.claims import BETTER
from archbench.analysis.findings.verdicts import CONFIRMED, REFUTED, Finding

COLOURS = {CONFIRMED: PALETTE[2], REFUTED: PALETTE[3], UNDECIDED: REFERENCE_COLOUR}
ROW, GAP = 0.075, 0.16
"""Inches of a claim, and between two verdicts."""
WIDTH, MARGIN = 5.2, 0.5
"""Inches of the figure, which is readable on a phone, too, and of the axis below the claims."""
LARGEST = 60
"""End of the axis, in smallest differences of interest."""


def findings_figure(findings: Sequence[Finding]) -> Figure | None:
    """Return the figure of all claims with a difference; None without any.

    Each claim is a line: its difference with its 95% interval, divided by the smallest difference of interest
    of the claim, so that claims in different units are on one axis. The band is what is not of interest.
    """
    groups = {verdict: _of_verdict(findings, verdict) for verdict in COLOURS}
    height = sum(ROW * len(group) + GAP for group in groups.values() if group) + MARGIN
    if not any(groups.values()):
        return None
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    axes = figure.add_axes((0.25, MARGIN / height, 0.72, 1 - MARGIN / height))
    axes.axvspan(-1, 1, color="#E8EBEE", zorder=0)
    axes.axvline(0, color=REFERENCE_COLOUR, linewidth=0.8, zorder=1)
    top, ticks = 0.0, {}
    for verdict, group in groups.items():
        for index, finding in enumerate(group):
            _draw(axes, finding, top - ROW * index)
        if group:
            ticks[top - ROW * (len(group) - 1) / 2] = f"{len(group)} {verdict}"
            top -= ROW * len(group) + GAP
    axes.set_yticks([*ticks], [*ticks.values()], fontsize=10)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(top + GAP / 2, GAP / 2 + ROW / 2)
    axes.set_xscale("symlog", linthresh=1, linscale=0.8)
    axes.set_xlim(-LARGEST, LARGEST)
    values = (-10, -1, 0, 1, 10)
    axes.set_xticks(values, [f"{value:+d}" if value else "0" for value in values], fontsize=9)
    axes.set_xlabel("← worse | difference / smallest of interest | better →", fontsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def _of_verdict(findings: Sequence[Finding], verdict: str) -> list[Finding]:
    """Return the claims of a verdict that have a difference, the largest first."""
    group = [f for f in findings if f.verdict == verdict and not math.isnan(f.difference)]
    return sorted(group, key=lambda finding: -finding.difference / finding.claim.effect)


def _draw(axes: Any, finding: Finding, y: float) -> None:
    """Draw a claim: a circle for *better*, a square for *equal*."""
    ends = (finding.low, finding.difference, finding.high)
    low, middle, high = (min(max(end / finding.claim.effect, -LARGEST), LARGEST) for end in ends)
    colour = COLOURS[finding.verdict]
    axes.plot([low, high], [y, y], color=colour, linewidth=1.2, alpha=0.6, zorder=2)
    marker = "o" if finding.claim.relation == BETTER else "s"
    axes.plot([middle], [y], marker, color=colour, markersize=3.5, zorder=3)
