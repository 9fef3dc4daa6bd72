"""The report of a study as one HTML file that opens from disk, offline.

Plotly's script is inside the file, once, compressed. A content security policy
forbids every request, so nothing the page shows can come from elsewhere.
"""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import plotly.offline

from analysis.figures.contexts import further_curves, position_curves, read_positions, recall_maps
from analysis.figures.curves import AXES, learning_curves
from analysis.figures.scores import final_scores, forest, profiles
from analysis.figures.style import styles
from analysis.figures.tradeoffs import pareto_fronts
from analysis.figures.training import compute_to_target, gradient_norms, rate_curves
from analysis.report import figure_sections as page_figures
from analysis.report.html import bullets, dot
from analysis.report.table_sections import (
    costs,
    differences,
    every_pair,
    every_run,
    meanings,
    provenance,
    verdict_tables,
)
from analysis.scaling.figures import scaling_curves
from analysis.scaling.points import study_points
from analysis.scaling.tables import Fit, fit
from analysis.speed.curves import speed_curves
from analysis.speed.panels import largest_curves, memory_curves, sampling_curves
from analysis.speed.rows import given
from analysis.stats.arms import matched_line
from analysis.stats.learning_rate_sensitivity import rate_optima, rate_runs
from analysis.stats.ranks import (
    baseline_gains,
    levels_reached,
)
from analysis.stats.warnings import study_warnings
from analysis.tables.text import counts_line

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
BOOTSTRAPS = 100
"""Samples for the bands of scaling laws; ``analysis.scaling`` takes more."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The figures of the report, and the scaling laws fitted for it."""

    figures: dict[str, go.Figure | None]
    """By name; None where the study has nothing for a figure."""
    laws: dict[str, Fit]
    speed: pd.DataFrame | None
    """Rows of ``experiments.benchmark``, where the report was given some."""


def find(frame: pd.DataFrame, history: pd.DataFrame, speed: pd.DataFrame | None = None) -> Findings:
    """Return every figure of the report.

    Args:
        frame: from ``load_study``.
        history: from ``load_history``, of the same study.
        speed: rows of ``experiments.benchmark``, from ``analysis.speed.rows.load_speed``.

    Raises ValueError where a run's evaluation by position cannot be read.
    """
    laws = scaling_fits(frame, history)
    figures = {
        "learning_curves": learning_curves(frame, history),
        "final_scores": final_scores(frame),
        "compute_to_target": compute_to_target(levels_reached(frame, history), frame),
        "learning_rates": rate_curves(rate_runs(frame)),
        "scaling_laws": scaling_curves(laws),
        "pareto_fronts": pareto_fronts(frame, None if speed is None else given(speed)),
        "further_tests": further_curves(frame),
        "recall_maps": recall_maps(frame),
        "positions": position_curves(read_positions(frame), frame),
        "gains": forest(baseline_gains(frame), frame),
        "performance_profiles": profiles(frame),
        "speed": None if speed is None else speed_curves(speed),
        "memory": None if speed is None else memory_curves(speed),
        "sampling": None if speed is None else sampling_curves(speed),
        "largest_batches": None if speed is None else largest_curves(speed),
        "gradient_norms": gradient_norms(frame, history),
    }
    return Findings(figures=figures, laws=laws, speed=speed)


def scaling_fits(frame: pd.DataFrame, history: pd.DataFrame) -> dict[str, Fit]:
    """The laws of the backbones of which there are enough sizes and budgets, on the first task with any."""
    for _, group in study_points(frame, history).groupby(["task", "likelihood"], dropna=False, sort=True):
        found = {}
        for line, own in group.groupby("line", sort=True):
            if own["size"].nunique() >= 4 and own["tokens"].nunique() >= 4:
                found[str(line)] = fit(own, drop=0, bootstraps=BOOTSTRAPS, seed=0)
        if found:
            return found
    return {}


def render_page(frame: pd.DataFrame, history: pd.DataFrame, found: Findings | None = None) -> str:
    """Return the report of a study as HTML text; ``found`` is the result of ``find``, if it is known."""
    study = str(frame["study"].iloc[0])
    found = found or find(frame, history)
    name, figures, rates = escape(study), found.figures, rate_optima(rate_runs(frame))
    spent = (
        f"{frame['training_seconds'].sum() / 3600:.2f} hours and {frame['training_flops'].sum():.2e} FLOPs"
    )
    parts = [
        f"<h1>{name}</h1><p>Which architecture scores best at equal budget, and how sure is that? ",
        f'<span class="soft">{escape(counts_line(frame))} Training took {spent}.</span></p>',
        f"<p><strong>{escape(matched_line(frame))}</strong></p>",
        bullets(study_warnings(frame), "warnings"),
        _arms(frame),
        "<h2>1. Verdict</h2>" + verdict_tables(frame) + page_figures.scores(figures),
        every_pair(frame) + meanings(),
        "<h2>2. Learning curves</h2>" + page_figures.learning(figures),
        "<h2>3. Compute to target</h2>" + page_figures.targets(figures, study),
        "<h2>4. Learning-rate sensitivity</h2>" + page_figures.rates(figures, rates),
        "<h2>5. Scaling</h2>" + page_figures.scaling(figures, found.laws),
        "<h2>6. Trade-offs</h2>" + page_figures.tradeoffs(figures, frame, found.speed, study),
        "<h2>7. Longer contexts and other tests</h2>" + page_figures.further(figures, frame, study),
        "<h2>8. Tasks</h2>" + page_figures.tasks(figures, frame),
        "<h2>9. Speed</h2>" + page_figures.speeds(figures, frame, found.speed, study),
        "<h2>10. Stability</h2>" + page_figures.stability(figures, frame, history, study),
        "<h2>11. Failures and cost</h2>" + costs(frame) + every_run(frame),
        "<h2>12. Configurations and provenance</h2>" + differences(frame) + provenance(frame),
    ]
    here = Path(__file__).parent
    style, script = ((here / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name}: report</title><style>{style}</style></head><body>{''.join(parts)}"
        f'<script type="application/json" id="axes">{json.dumps(list(AXES.values()))}</script>'
        f'<script type="text/plain" id="plotly">{_packed_plotly()}</script>'
        f"<script>{script}</script></body></html>\n"
    )


@cache
def _packed_plotly() -> str:
    """Plotly's script, compressed, as text."""
    return base64.b64encode(gzip.compress(plotly.offline.get_plotlyjs().encode(), 9, mtime=0)).decode()


def _arms(frame: pd.DataFrame) -> str:
    """Return a switch for each model, which shows or hides it in all figures."""
    boxes = "".join(
        f'<label><input type="checkbox" value="{escape(arm)}" checked>{dot(look["color"])}'
        f"{escape(arm)}</label>"
        for arm, look in styles(frame).items()
    )
    return f'<div class="controls arms">{boxes}</div>'
