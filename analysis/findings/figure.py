"""The figure of all claims: the difference that each claims, with its interval, by verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from archbench.analysis.declared.records import UNDECIDED
from archbench.analysis.figures.style import PALETTE, REFERENCE_COLOUR, make_panels
from archbench.analysis.findings.claims import BETTER
from archbench.analysis.findings.verdicts import CONFIRMED, REFUTED, Finding

COLOURS = {CONFIRMED: PALETTE[2], REFUTED: PALETTE[3], UNDECIDED: REFERENCE_COLOUR}
ROW, GAP = 7.5, 16
"""Pixels of a claim, and between two verdicts."""
WIDTH, MARGIN = 520, 50
"""Pixels of the figure, which is readable on a phone, too, and of the axis below the claims."""
LARGEST = 60
"""End of the axis, in smallest differences of interest."""


def findings_figure(findings: Sequence[Finding]) -> go.Figure | None:
    """Return the figure of all claims with a difference; None without any.

    Each claim is a line: its difference with its 95% interval, divided by the smallest difference of interest
    of the claim, so that claims in different units are on one axis. The band is what is not of interest.
    """
    groups = {verdict: _of_verdict(findings, verdict) for verdict in COLOURS}
    groups = {verdict: group for verdict, group in groups.items() if group}
    if not groups:
        return None
    figure, [cell] = make_panels([""])
    top, ticks = 0.0, {}
    for verdict, group in groups.items():
        heights = [top - ROW * index for index in range(len(group))]
        for finding, height in zip(group, heights, strict=True):
            figure.add_traces(_claim(finding, height))
        ticks[(heights[0] + heights[-1]) / 2] = f"{len(group)} {verdict}"
        top = heights[-1] - ROW - GAP
    ends = (position(-1), position(1))
    figure.add_vrect(*ends, fillcolor="#E8EBEE", line_width=0, layer="below", **cell)
    figure.add_vline(0, line={"color": REFERENCE_COLOUR, "width": 1}, layer="between", **cell)
    figure.update_yaxes(
        tickvals=[*ticks], ticktext=[*ticks.values()], ticks="", range=[top + GAP / 2, (GAP + ROW) / 2],
        showgrid=False, showline=False, zeroline=False, **cell,
    )  # fmt: skip
    values = (-10, -1, 0, 1, 10)
    figure.update_xaxes(
        tickvals=[position(value) for value in values], showgrid=False, zeroline=False,
        ticktext=[f"{value:+d}" if value else "0" for value in values],
        range=[position(-LARGEST), position(LARGEST)],
        title_text="← worse | difference / smallest of interest | better →", **cell,
    )  # fmt: skip
    return figure.update_layout(width=WIDTH, height=GAP - top + MARGIN, showlegend=False)


def position(value: float) -> float:
    """Return where a value is on the axis: linear from -1 to 1, logarithmic beyond, at most ``LARGEST``."""
    size = min(abs(value), LARGEST)
    return math.copysign(size if size <= 1 else 1 + math.log(size) / 2, value)


def _of_verdict(findings: Sequence[Finding], verdict: str) -> list[Finding]:
    """Return the claims of a verdict that have a difference, the largest first."""
    group = [f for f in findings if f.verdict == verdict and not math.isnan(f.difference)]
    return sorted(group, key=lambda finding: -finding.difference / finding.claim.effect)


def _claim(finding: Finding, height: float) -> list[go.Scatter]:
    """Return the interval of a claim and its difference: a circle for *better*, a square for *equal*."""
    ends = (finding.low, finding.difference, finding.high)
    low, middle, high = (position(end / finding.claim.effect) for end in ends)
    colour = COLOURS[finding.verdict]
    symbol = "circle" if finding.claim.relation == BETTER else "square"
    hover = f"<b>{finding.name}</b> {finding.difference / finding.claim.effect:+.3g}<extra></extra>"
    return [
        go.Scatter(
            x=[low, high], y=[height] * 2, mode="lines", line={"color": colour, "width": 1.5}, opacity=0.6
        ),
        go.Scatter(
            x=[middle], y=[height], mode="markers", hovertemplate=hover,
            marker={"color": colour, "symbol": symbol, "size": 6},
        ),
    ]  # fmt: skip
