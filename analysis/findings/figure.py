"""The drawing of all claims: the seeds of both sides, a row for each claim."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from matplotlib.figure import Figure

from analysis.figures.style import PALETTE, REFERENCE_COLOUR
from analysis.findings.verdicts import CONFIRMED, REFUTED, UNDECIDED, Finding

COLOURS = {CONFIRMED: PALETTE[0], REFUTED: PALETTE[1], UNDECIDED: REFERENCE_COLOUR}
ROW = 0.62
"""Inches of a row."""


def findings_figure(findings: Sequence[Finding]) -> Figure | None:
    """Return the figure of all claims that have scores on both sides; None where there are none.

    Each row has an axis of its own, in the unit of its score: above the seeds of the model that the claim
    favours, below those of the other, with their means as bars.
    """
    shown = [each for each in findings if each.scores[0] and each.scores[1]]
    if not shown:
        return None
    figure = Figure(figsize=(9, ROW * len(shown) + 0.4), layout="constrained", facecolor="white")
    for number, finding in enumerate(shown, start=1):
        axes = figure.add_subplot(len(shown), 1, number)
        for height, values, colour in zip(
            (1, 0), finding.scores, (COLOURS[finding.verdict], REFERENCE_COLOUR), strict=True
        ):
            axes.plot(values, [height] * len(values), "o", color=colour, alpha=0.6, markersize=5)
            axes.plot([fmean(values)], [height], "|", color=colour, markersize=16, markeredgewidth=2)
        names = [", ".join(where.values()) for where in (finding.claim.model, finding.claim.other)]
        axes.set_yticks([1, 0], names, fontsize=8)
        axes.set_ylim(-0.6, 1.6)
        axes.tick_params(axis="x", labelsize=7, pad=1)
        axes.spines[["top", "right", "left"]].set_visible(False)
        title = f"{finding.name.replace('_', ' ')}: {finding.verdict} ({finding.unit})"
        axes.set_title(title, fontsize=8, loc="left", pad=2)
    return figure
