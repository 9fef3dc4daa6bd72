"""The report of a study as one HTML file that opens from disk, offline.

Plotly's script is inside the file, once, compressed. A content security policy
forbids every request, so nothing the page shows can come from elsewhere.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import plotly.offline
from markupsafe import Markup

from archbench.analysis.figures.against import against_figure
from archbench.analysis.figures.capacity import capacity_figures
from archbench.analysis.figures.compute import score_over_compute
from archbench.analysis.figures.contexts import further_curves, position_curves, read_positions, recall_maps
from archbench.analysis.figures.curves import AXES, learning_curves, loss_curves
from archbench.analysis.figures.scores import final_scores, forest, profiles
from archbench.analysis.figures.style import styles
from archbench.analysis.figures.text_slices import slice_gains
from archbench.analysis.figures.tradeoffs import decoding_note, pareto_fronts
from archbench.analysis.figures.training import compute_to_target, gradient_norms, rate_curves
from archbench.analysis.load.scale_order import scale_groups, size_names, task_label
from archbench.analysis.report import tables
from archbench.analysis.report.cards import cards
from archbench.analysis.report.differences import panels
from archbench.analysis.report.needs import needs, speed_commands
from archbench.analysis.scaling.figures import scaling_curves
from archbench.analysis.scaling.points import study_points
from archbench.analysis.scaling.tables import Fit, checks, fit
from archbench.analysis.speed.curves import roof_notes, roofline_grid, speed_curves
from archbench.analysis.speed.panels import largest_curves, largest_grid, memory_curves, sampling_curves
from archbench.analysis.speed.rows import given
from archbench.analysis.stats.arms import matched_line
from archbench.analysis.stats.computed import Computed
from archbench.analysis.stats.extra_tests import published
from archbench.analysis.stats.learning_rates.sensitivity import rate_notes, rate_optima, rate_runs
from archbench.analysis.stats.ranking.ranks import baseline_gains, levels_reached
from archbench.analysis.stats.run_costs import cost_grid, stability_grid
from archbench.analysis.stats.targets.performance_profile import lines
from archbench.analysis.tables.compute import compute_answers
from archbench.analysis.tables.format import flops
from archbench.analysis.tables.headings import counts_line, joined_lines, study_name, verdict
from archbench.analysis.tables.sentences import answer, answers
from archbench.analysis.tables.slices import slice_grids
from archbench.analysis.tables.text import grids_over_tasks, more_tables
from archbench.analysis.templates import environment
from archbench.experiments.tasks.metrics import LIKELIHOOD_TYPES

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
BOOTSTRAPS = 100
"""Samples for the bands of scaling laws; ``analysis.scaling`` takes more."""
MOST_SWITCHES = 12
LEGEND = 10
"""A figure with more models than this has no legend: the switches of the page show their colours."""
TAG = re.compile(r"\\u003c(?!(?:\\u002f)?(?:br|b|extra)\\u003e)")
"""Beginning of a tag, as Plotly writes it as JSON, that no figure has in its labels."""
HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The figures of the report, and the scaling laws fitted for it."""

    figures: dict[str, go.Figure | None]
    """By name; None where the study has nothing for a figure."""
    laws: dict[str, Fit]
    speed: pd.DataFrame | None
    """Rows of ``experiments.benchmark``, where the report was given some."""


def find(
    frame: pd.DataFrame,
    history: pd.DataFrame,
    speed: pd.DataFrame | None = None,
    computed: Computed | None = None,
) -> Findings:
    """Return every figure of the report.

    Args:
        frame: from ``load_study``.
        history: from ``load_history``, of the same study.
        speed: rows of ``experiments.benchmark``, from ``analysis.speed.rows.load_speed``.
        computed: what was computed of the frame before.

    Raises ValueError where a run's evaluation by position cannot be read.
    """
    computed = computed or Computed(frame)
    laws, table = scaling_fits(frame, history), computed.table
    figures = {
        "score_over_compute": score_over_compute(frame, table),
        "training_loss": loss_curves(frame, history),
        "learning_curves": learning_curves(frame, history),
        "final_scores": final_scores(frame, table),
        "compute_to_target": compute_to_target(levels_reached(frame, history, table), frame),
        "learning_rates": rate_curves(rate_runs(frame)),
        "scaling_laws": scaling_curves(laws),
        "pareto_fronts": pareto_fronts(frame, None if speed is None else given(speed), table),
        "further_tests": further_curves(frame, computed.further),
        "recall_maps": recall_maps(frame, computed.further),
        "positions": position_curves(read_positions(frame), frame),
        "slices": slice_gains(computed.slices, frame),
        "gains": forest(baseline_gains(frame, table, computed.pairs), frame),
        "performance_profiles": profiles(frame),
        "speed": None if speed is None else speed_curves(speed),
        "memory": None if speed is None else memory_curves(speed),
        "sampling": None if speed is None else sampling_curves(speed),
        "largest_batches": None if speed is None else largest_curves(speed),
        "gradient_norms": gradient_norms(frame, history),
    }
    return Findings(figures=figures, laws=laws, speed=speed)


def scaling_fits(frame: pd.DataFrame, history: pd.DataFrame) -> dict[str, Fit]:
    """Return the laws of the backbones with enough sizes and budgets, on the first task that has any."""
    for _, group in study_points(frame, history).groupby(["task", "likelihood"], dropna=False, sort=True):
        fits = {}
        for line, points in group.groupby("line", sort=True):
            if points["size"].nunique() >= 4 and points["tokens"].nunique() >= 4:
                fits[str(line)] = fit(points, drop=0, bootstraps=BOOTSTRAPS, seed=0)
        if fits:
            return fits
    return {}


def render_page(
    frame: pd.DataFrame,
    history: pd.DataFrame,
    content: Findings | None = None,
    computed: Computed | None = None,
) -> str:
    """Return the report of a study as HTML text; ``content`` is the result of ``find``."""
    computed = computed or Computed(frame)
    content = content or find(frame, history, computed=computed)
    style, script = (Markup((HERE / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    return environment(HERE / "templates").get_template("page.html.j2").render(
        policy=POLICY, axes=list(AXES.values()), likelihood_types=LIKELIHOOD_TYPES,
        style=style, script=script, plotly=_packed_plotly(),
        plots={name: figure and plot_json(figure) for name, figure in content.figures.items()},
        needs=needs(computed, history, [name for name, figure in content.figures.items() if figure is None]),
        **_summary(computed), **_sections(computed, history, content),
    )  # fmt: skip


def plot_json(figure: go.Figure) -> Markup:
    """Return a figure as JSON that can be inside a script element."""
    if sum(trace.showlegend is not False for trace in figure.data) > LEGEND:
        figure = go.Figure(figure).update_layout(showlegend=False)
    text = TAG.sub("&lt;", str(figure.to_json()))  # Plotly takes tags in names for markup, such as links
    # Inside a script element only "<" could be taken for markup.
    return Markup(text.replace("<", "\\u003c"))


@dataclass(frozen=True, kw_only=True)
class Switch:
    """A switch that shows or hides a model in all figures."""

    name: str
    colour: str
    names: str
    """Of the traces of figures: a list in JSON."""


def _summary(computed: Computed) -> dict[str, object]:
    """Return the values above the first section."""
    frame, arms = computed.frame, computed.arms
    all_panels = panels(arms, frame)
    of_panels = [panel.answer for panel in all_panels]
    others = [*compute_answers(frame, computed.multipliers), *(answer(line) for line in answers(arms))]
    others = [found for found in others if found not in of_panels]
    return {
        "study": study_name(frame),
        "answers": others,
        "details": [found for found in (*others, *of_panels) if found.rest],
        "panels": all_panels,
        "joined": joined_lines(frame),
        "counts": counts_line(frame),
        "sizes": size_names(frame),
        "hours": f"{frame['training_seconds'].sum() / 3600:.2f}",
        "flops": flops(frame["training_flops"].sum()),
        "matched": matched_line(frame),
        "warnings": tables.warning_groups(computed),
        "switches": switches(frame),
    }


def switches(frame: pd.DataFrame) -> list[Switch]:
    """Return a switch for each model, or for each backbone of more than ``MOST_SWITCHES`` models."""
    look = styles(frame)
    of_lines = frame.assign(line=lines(frame)).groupby("line", sort=True)["arm"].unique()
    if len(look) > MOST_SWITCHES:
        return [
            Switch(name=str(line), colour=look[arms[0]]["color"], names=json.dumps([str(line), *arms]))
            for line, arms in of_lines.items()
        ]
    single = {arms[0]: str(line) for line, arms in of_lines.items() if len(arms) == 1}
    return [
        Switch(
            name=arm,
            colour=look[arm]["color"],
            names=json.dumps(list(dict.fromkeys([arm, single.get(arm, arm)]))),
        )
        for arm in sorted(look)
    ]


def _sections(computed: Computed, history: pd.DataFrame, content: Findings) -> dict[str, object]:
    """Return the tables and notes of all sections."""
    frame = computed.frame
    image, speed = against_figure(frame, computed.against), content.speed
    task_scales = [(str(task), str(scale)) for (task, scale), _ in scale_groups(frame)]
    measured: dict[str, object] = {"measured": False}
    if speed is not None:
        measured = {
            "measured": True,
            "decoding_note": decoding_note(frame, given(speed)),
            "roof_notes": roof_notes(speed),
            "roofline_table": roofline_grid(speed),
            "largest_batch_table": largest_grid(speed),
        }
    return measured | {
        "task_tables": tables.task_tables(computed),
        "cards": cards(frame, history),
        "further_tables": [grid for names in task_scales for grid in more_tables(computed, *names)],
        "slice_tables": list(slice_grids(computed.slices)),
        "tables_over_tasks": grids_over_tasks(computed),
        "stability_table": stability_grid(frame, history),
        "cost_table": cost_grid(frame),
        "speed_commands": speed_commands(frame),
        "run_table": tables.run_table(frame),
        "config_tables": tables.config_tables(frame),
        "provenance": tables.provenance(frame),
        "pairs": [f"{task_label(p['task'], p['scale'])}: {verdict(p)}" for _, p in computed.pairs.iterrows()],
        "rate_notes": rate_notes(rate_optima(rate_runs(frame))),
        "laws": [
            f"{line}: E {law.show(lambda law: law.E)}, a in N* ~ C^a {law.show(lambda law: law.exponent)}. "
            + " ".join(checks(law))
            for line, law in content.laws.items()
        ],
        "against": None if image is None else inline_svg(image.decode()),
        "capacities": _capacities(computed.ladders),
        "published": published(frame),
    }


def _capacities(ladders: pd.DataFrame) -> list[Markup]:
    """Return the figure of each ladder of the study."""
    if ladders.empty:
        return []
    from archbench.analysis.figures.files import figure_bytes  # imports Matplotlib, which is slow

    figures = capacity_figures(ladders).values()
    return [inline_svg(figure_bytes(figure, "svg").decode()) for figure in figures]


def inline_svg(svg: str) -> Markup:
    """Return an SVG file of Matplotlib as an element of the page.

    Its style is for every element of a document, so it is restricted to the elements of this file.
    """
    element = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    return Markup(element.replace("*{", ".drawn svg *{"))


@cache
def _packed_plotly() -> str:
    """Return Plotly's script, compressed, as text."""
    return base64.b64encode(gzip.compress(plotly.offline.get_plotlyjs().encode(), 9, mtime=0)).decode()
