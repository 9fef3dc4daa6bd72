"""The report's parts that are figures, with the words and tables around them."""

from __future__ import annotations

import base64
from html import escape

import pandas as pd
import plotly.graph_objects as go

from analysis.figures.against import against_figure
from analysis.figures.contexts import EVALUATED
from analysis.figures.curves import AXES
from analysis.figures.tradeoffs import decoding_note
from analysis.report.html import bullets, code, drawn, grid, text_row
from analysis.report.table_sections import over_tasks, speed_table
from analysis.scaling.tables import Fit, checks
from analysis.speed.curves import SHARE_HEAD, roof_notes, share_rows
from analysis.speed.panels import LARGEST_HEAD, largest_rows
from analysis.speed.rows import given
from analysis.stats.arms import TASK_SCALE
from analysis.stats.extra_tests import published
from analysis.stats.learning_rate_sensitivity import rate_notes
from analysis.stats.run_costs import STABILITY_HEAD, STABILITY_NOTE, stability_rows
from analysis.tables.text import more_tables

Figures = dict[str, go.Figure | None]


def scores(figures: Figures) -> str:
    if figures["final_scores"] is None:
        return ""
    return (
        "<h3>Final scores</h3><p>On the test split. Bars: 95% t-interval over seeds; small circles: each "
        "seed. Compare models of one likelihood type only.</p>" + drawn(figures["final_scores"], "")
    )


def learning(figures: Figures) -> str:
    if figures["learning_curves"] is None:
        return '<p class="soft">No run has been validated yet.</p>'
    options = "".join(
        f'<label><input type="radio" name="axis" value="{i}"{" checked" * (i == 0)}> {label}</label>'
        for i, label in enumerate(AXES.values())
    )
    return (
        "<p>Validation during training. Lines: mean over seeds; bands: from the lowest to the highest seed. "
        "Dashed and grey: references.</p>"
        f'<div class="controls curves">{options}'
        '<label><input type="checkbox" id="log"> logarithmic</label>'
        '<label><input type="checkbox" id="log-score"> logarithmic score</label>'
        '<label><input type="checkbox" id="seeds"> single seeds</label></div>'
        f'<div id="curves">{drawn(figures["learning_curves"], "")}</div>'
    )


def targets(figures: Figures, study: str) -> str:
    figure = figures["compute_to_target"]
    text = (
        "<p>Training FLOPs of the baseline of its likelihood type over those of a model, to reach levels of "
        "the validation score; linear between validations, the mean over common seeds. No point: a seed does "
        "not reach the level.</p>"
    ) * (figure is not None)
    command = f"python -m experiments.train study={study} trainer.evaluate_every=50"
    return text + drawn(
        figure, f"Needs two models of one likelihood type with several validations: {code(command)}."
    )


def rates(figures: Figures, best: pd.DataFrame) -> str:
    sweep = "python -m experiments.train study=compare_rates"
    otherwise = f"Needs three learning rates of a backbone in this study, as in {code(sweep)}."
    return drawn(figures["learning_rates"], otherwise) + bullets(rate_notes(best), "rates")


def scaling(figures: Figures, laws: dict[str, Fit]) -> str:
    ladder = "python -m experiments.train study=ladder"
    if figures["scaling_laws"] is None:
        return drawn(None, f"Needs four sizes and four budgets of a backbone, as in {code(ladder)}.")
    lines = [
        f"{line}: E {found.show(lambda law: law.E)}, a in N* ~ C^a {found.show(lambda law: law.exponent)}. "
        + " ".join(checks(found))
        for line, found in laws.items()
    ]
    text = "<p>Loss = E + A N^-alpha + B D^-beta; bands and brackets: 95% bootstrap over runs.</p>"
    return text + drawn(figures["scaling_laws"], "") + bullets(lines, "laws")


def tradeoffs(figures: Figures, frame: pd.DataFrame, speed: pd.DataFrame | None, study: str) -> str:
    figure = figures["pareto_fronts"]
    if figure is None:
        train = f"python -m experiments.train study={study}"
        return drawn(None, f"Needs two models of one likelihood type with a score: {code(train)}.")
    text = "Open and grey: another model of its likelihood type is as good in both and better in one. "
    more = (
        f"{measured(study)} adds the speed of decoding."
        if speed is None
        else decoding_note(frame, given(speed))
    )
    return f"<p>{text}<span class='soft'>{more}</span></p>" + drawn(figure, "")


def further(figures: Figures, frame: pd.DataFrame, study: str) -> str:
    """Further tests of the same models, what else a study asks for, and what others published."""
    longer = "trainer.extra_evaluations=[sequence_length=256]"
    parts = []
    if figures["further_tests"] is not None or figures["recall_maps"] is None:
        parts = [
            drawn(figures["further_tests"], f"Needs extra evaluations of the same models: {code(longer)}.")
        ]
    depths = "trainer.extra_evaluations=['sequence_length=256 depth=0','sequence_length=256 depth=1']"
    parts += [
        "<h3>Needles by length and depth</h3>",
        drawn(
            figures["recall_maps"],
            f"Needs evaluations that set both, as {code('task=needle')} has them: {code(depths)}, one for "
            "each field of the map.",
        ),
        "<h3>Loss by position</h3>",
        drawn(figures["positions"], f"Needs, for each causal run, {_positions(study)}"),
    ]
    if (image := against_figure(frame)) is not None:
        source = base64.b64encode(image).decode()
        parts.append(f'<p><img alt="scores against a number" src="data:image/svg+xml;base64,{source}"></p>')
    for (task, scale), _ in frame.groupby(TASK_SCALE, sort=True):
        for name, head, rows, note in more_tables(frame, str(task), str(scale)):
            table = grid(head, [text_row(row) for row in rows])
            parts.append(f"<h3>{escape(name)}</h3>{table}" + f"<p>{escape(note)}</p>" * bool(note))
    quoted = published(frame)
    return "".join(parts) + "<h3>Published</h3>" * bool(quoted) + bullets(quoted, "published")


def _positions(study: str) -> str:
    run = f"runs/{study}/CELL/sSEED"
    return code(f"python -m experiments.evaluate run={run} stretches=8 output={run}/{EVALUATED}") + "."


def tasks(figures: Figures, frame: pd.DataFrame) -> str:
    seeds = "Needs two seeds of two models of one likelihood type: seed=0,1,2."
    probes = "python -m experiments.train study=probes"
    profile = drawn(figures["performance_profiles"], f"Needs three tasks of one scale, as in {code(probes)}.")
    return drawn(figures["gains"], seeds) + profile + over_tasks(frame)


def speeds(figures: Figures, frame: pd.DataFrame, speed: pd.DataFrame | None, study: str) -> str:
    if speed is None:
        return speed_table(frame) + drawn(None, f"Speed against length: {measured(study)}.")
    parts = [speed_table(frame)]
    if figures["speed"] is not None:
        parts += [
            "<h3>Against length</h3><p>Dotted: the roofline, the most that the measured GEMM rate and "
            "memory bandwidth allow.</p>",
            drawn(figures["speed"], ""),
            bullets(roof_notes(speed), "roof"),
            grid(SHARE_HEAD, [text_row(row) for row in share_rows(speed)], "sortable"),
        ]
    if figures["memory"] is not None:
        parts += ["<h3>Memory against length</h3>" + drawn(figures["memory"], "")]
    if figures["sampling"] is not None:
        text = "Committed tokens per second; positions that a pass revisits do not count."
        parts += [f"<h3>Sampling by unmasking</h3><p>{text}</p>" + drawn(figures["sampling"], "")]
    if figures["largest_batches"] is not None:
        table = grid(LARGEST_HEAD, [text_row(row) for row in largest_rows(speed)], "sortable")
        parts += ["<h3>The largest batch that fits</h3>" + drawn(figures["largest_batches"], "") + table]
    return "".join(parts)


def measured(study: str) -> str:
    """Return the commands that measure speed and give it to the report."""
    report = f"python -m analysis.report study={study} speed=FILE.parquet"
    rows = "python -m experiments.benchmark -m backbone=decoder,mamba output=FILE.parquet"
    return f"{code(rows)}, then {code(report)}"


def stability(figures: Figures, frame: pd.DataFrame, history: pd.DataFrame, study: str) -> str:
    figure = drawn(
        figures["gradient_norms"], f"No gradient norms: {code(f'python -m experiments.train study={study}')}."
    )
    rows = [text_row(row) for row in stability_rows(frame, history)]
    return f"{figure}{grid(STABILITY_HEAD, rows, 'sortable')}<p>{escape(STABILITY_NOTE)}</p>"
