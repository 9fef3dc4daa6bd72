"""The figure of all claims: the scores of both models by seed, with a row for each claim."""

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
    """Return the figure of all claims with scores for both models; None without any.

    Each row has a separate axis in the unit of its score. The upper points are the seeds of ``claim.model``,
    the lower points those of ``claim.other``; bars are means.
    """
    with_scores = [candidate for candidate in findings if candidate.scores[0] and candidate.scores[1]]
    if not with_scores:
        return None
    figure = Figure(figsize=(9, ROW * len(with_scores) + 0.4), layout="constrained", facecolor="white")
    for position, finding in enumerate(with_scores, start=1):
        axes = figure.add_subplot(len(with_scores), 1, position)
        for height, values, colour in zip(
            (1, 0), finding.scores, (COLOURS[finding.verdict], REFERENCE_COLOUR), strict=True
        ):
            axes.plot(values, [height] * len(values), "o", color=colour, alpha=0.6, markersize=5)
            axes.plot([fmean(values)], [height], "|", color=colour, markersize=16, markeredgewidth=2)
        names = [", ".join(selection.values()) for selection in (finding.claim.model, finding.claim.other)]
        axes.set_yticks([1, 0], names, fontsize=8)
        axes.set_ylim(-0.6, 1.6)
        axes.tick_params(axis="x", labelsize=7, pad=1)
        axes.spines[["top", "right", "left"]].set_visible(False)
        title = f"{finding.name.replace('_', ' ')}: {finding.verdict} ({finding.unit})"
        axes.set_title(title, fontsize=8, loc="left", pad=2)
    return figure
