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

from analysis.against import draw
from analysis.figures import AXES, final_scores, further_curves, learning_curves, styles
from analysis.flags import study_warnings
from analysis.further import published
from analysis.page_parts import bullets, dot, drawn, grid, text_row
from analysis.page_tables import (
    costs,
    differences,
    every_pair,
    every_run,
    meanings,
    over_tasks,
    provenance,
    speed_table,
    verdict_tables,
)
from analysis.rate_sensitivity import rate_notes, rate_optima, rate_runs
from analysis.report_data import (
    baseline_gains,
    levels_reached,
)
from analysis.report_figures import (
    compute_to_target,
    gradient_norms,
    rate_curves,
    scaling_curves,
    speed_curves,
)
from analysis.scaling_points import study_points
from analysis.scaling_tables import Fit, checks, fit
from analysis.summary import PLACE, matched_line
from analysis.table import counts_line, more_tables
from analysis.tradeoff_figures import forest, pareto_fronts, profiles

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
BOOTSTRAPS = 100
"""Samples for the bands of scaling laws; ``analysis.scaling`` takes more."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What the report draws, and the laws it fitted for it."""

    figures: dict[str, go.Figure | None]
    """By name; None where the study has nothing for a figure."""
    laws: dict[str, Fit]


def find(frame: pd.DataFrame, history: pd.DataFrame, speed: pd.DataFrame | None = None) -> Findings:
    """Every figure of the report.

    Args:
        frame: from ``load_study``.
        history: from ``load_history``, of the same study.
        speed: rows of ``experiments.benchmark``, from ``analysis.speed.load_speed``.
    """
    laws = scaling_fits(frame, history)
    figures = {
        "learning_curves": learning_curves(frame, history),
        "final_scores": final_scores(frame),
        "compute_to_target": compute_to_target(levels_reached(frame, history), frame),
        "learning_rates": rate_curves(rate_runs(frame)),
        "scaling_laws": scaling_curves(laws),
        "pareto_fronts": pareto_fronts(frame),
        "further_tests": further_curves(frame),
        "gains": forest(baseline_gains(frame), frame),
        "performance_profiles": profiles(frame),
        "speed": None if speed is None else speed_curves(speed),
        "gradient_norms": gradient_norms(frame, history),
    }
    return Findings(figures=figures, laws=laws)


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
    """The report of a study as HTML text; ``found`` is what ``find`` gives, for whom has it already."""
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
        "<h2>1. Verdict</h2>" + verdict_tables(frame) + _scores(figures) + every_pair(frame) + meanings(),
        "<h2>2. Learning curves</h2>" + _learning(figures["learning_curves"]),
        "<h2>3. Compute to target</h2>" + _targets(figures["compute_to_target"], study),
        "<h2>4. Learning-rate sensitivity</h2>" + _rates(figures["learning_rates"], rates),
        "<h2>5. Scaling</h2>" + _scaling(figures["scaling_laws"], found.laws),
        "<h2>6. Trade-offs</h2>" + _tradeoffs(figures["pareto_fronts"], study),
        "<h2>7. Longer contexts and other tests</h2>" + _further(figures["further_tests"], frame),
        "<h2>8. Tasks</h2>" + _tasks(figures, frame),
        "<h2>9. Speed</h2>" + speed_table(frame) + _speed(figures["speed"], study),
        "<h2>10. Stability</h2>" + _stability(figures["gradient_norms"], study),
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
    """A switch for each arm, which shows or hides it in all figures."""
    boxes = "".join(
        f'<label><input type="checkbox" value="{escape(arm)}" checked>{dot(look["color"])}'
        f"{escape(arm)}</label>"
        for arm, look in styles(frame).items()
    )
    return f'<div class="controls arms">{boxes}</div>'


def _scores(figures: dict[str, go.Figure | None]) -> str:
    if figures["final_scores"] is None:
        return ""
    return (
        "<h3>Final scores</h3><p>On the test split. Bars: 95% t-interval over seeds; small circles: each "
        "seed. Compare arms of one likelihood class only.</p>" + drawn(figures["final_scores"], "")
    )


def _learning(figure: go.Figure | None) -> str:
    if figure is None:
        return '<p class="soft">No run has been validated yet.</p>'
    options = "".join(
        f'<label><input type="radio" name="axis" value="{i}"{" checked" * (i == 0)}> {label}</label>'
        for i, label in enumerate(AXES.values())
    )
    return (
        "<p>Validation during training. Thick: mean over seeds; thin: each seed. Grey: references.</p>"
        f'<div class="controls curves">{options}'
        '<label><input type="checkbox" id="log"> logarithmic</label>'
        '<label><input type="checkbox" id="log-score"> logarithmic score</label></div>'
        f'<div id="curves">{drawn(figure, "")}</div>'
    )


def _targets(figure: go.Figure | None, study: str) -> str:
    text = (
        "<p>How many times fewer training FLOPs than the baseline an arm takes to each level of the "
        "validation score, by straight lines between validations; the mean over seeds in common. No point: "
        "a seed misses it.</p>"
    ) * (figure is not None)
    command = f"python -m experiments.train study={study} trainer.evaluate_every=50"
    return text + drawn(figure, f"Takes two arms of one class with several validations: {code(command)}.")


def _rates(figure: go.Figure | None, rates: pd.DataFrame) -> str:
    sweep = "python -m experiments.train study=compare_rates"
    text = drawn(figure, f"Takes three learning rates of a backbone in this study, as in {code(sweep)}.")
    return text + bullets(rate_notes(rates), "rates")


def _scaling(figure: go.Figure | None, laws: dict[str, Fit]) -> str:
    ladder = "python -m experiments.train study=ladder"
    if figure is None:
        return drawn(None, f"Takes four sizes and four budgets of a backbone, as in {code(ladder)}.")
    lines = [
        f"{line}: E {found.show(lambda law: law.E)}, a in N* ~ C^a {found.show(lambda law: law.exponent)}. "
        + " ".join(checks(found))
        for line, found in laws.items()
    ]
    text = "<p>Loss = E + A N^-alpha + B D^-beta; bands and brackets: 95% bootstrap over runs.</p>"
    return text + drawn(figure, "") + bullets(lines, "laws")


def _tradeoffs(figure: go.Figure | None, study: str) -> str:
    text = "<p>Open and grey: another arm of its class is as good in both and better in one.</p>"
    otherwise = (
        f"Takes two arms of one class with a score: {code(f'python -m experiments.train study={study}')}."
    )
    return text * (figure is not None) + drawn(figure, otherwise)


def _further(figure: go.Figure | None, frame: pd.DataFrame) -> str:
    """Further tests of the same models, what else a study asks for, and what others published."""
    longer = "trainer.tests=[sequence_length=256]"
    parts = [drawn(figure, f"Takes other tests of the same models, such as {code(longer)}.")]
    if (image := draw(frame)) is not None:
        source = base64.b64encode(image).decode()
        parts.append(f'<p><img alt="scores against a number" src="data:image/svg+xml;base64,{source}"></p>')
    for (task, scale), _ in frame.groupby(PLACE, sort=True):
        for name, head, rows, note in more_tables(frame, str(task), str(scale)):
            table = grid(head, [text_row(row) for row in rows])
            parts.append(f"<h3>{escape(name)}</h3>{table}" + f"<p>{escape(note)}</p>" * bool(note))
    quoted = published(frame)
    return "".join(parts) + "<h3>Published</h3>" * bool(quoted) + bullets(quoted, "published")


def _tasks(figures: dict[str, go.Figure | None], frame: pd.DataFrame) -> str:
    seeds = "Takes two seeds of two arms of one class: seed=0,1,2."
    probes = "python -m experiments.train study=probes"
    profile = drawn(figures["performance_profiles"], f"Takes three tasks of one scale, as in {code(probes)}.")
    return drawn(figures["gains"], seeds) + profile + over_tasks(frame)


def _speed(figure: go.Figure | None, study: str) -> str:
    measure = "python -m experiments.benchmark"
    command = f"python -m analysis.report study={study} speed=FILE.parquet"
    return drawn(
        figure, f"Speed against length: {code(measure)}, then {code(command)} with the file it wrote."
    )


def _stability(figure: go.Figure | None, study: str) -> str:
    return drawn(figure, f"No gradient norms: {code(f'python -m experiments.train study={study}')}.")


def code(text: str) -> str:
    """A command."""
    return f"<code>{escape(text)}</code>"
