"""The report of a study as one HTML file that opens from disk, offline.

Plotly's script is inside the file, once, compressed. A content security policy
forbids every request, so nothing the page shows can come from elsewhere.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import plotly.offline
from markupsafe import Markup

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.against import against_figure
from archbench.analysis.figures.capacity import capacity_figures
from archbench.analysis.figures.compute import score_over_compute
from archbench.analysis.figures.contexts import further_curves, position_curves, recall_maps
from archbench.analysis.figures.curves import AXES, learning_curves, loss_curves
from archbench.analysis.figures.scores import final_scores, forest, profiles
from archbench.analysis.figures.style import styles
from archbench.analysis.figures.text_slices import slice_gains
from archbench.analysis.figures.tradeoffs import decoding_note, pareto_fronts
from archbench.analysis.figures.training import compute_to_target, gradient_norms, rate_curves
from archbench.analysis.load.scale_order import size_names, task_label
from archbench.analysis.report import tables
from archbench.analysis.report.cards import cards
from archbench.analysis.report.differences import panels
from archbench.analysis.report.needs import needs, speed_commands
from archbench.analysis.scaling.figures import scaling_curves
from archbench.analysis.scaling.points import study_points
from archbench.analysis.scaling.tables import Fit, checks, scaling_fits
from archbench.analysis.speed.curves import roof_notes, roofline_grid, speed_curves
from archbench.analysis.speed.panels import largest_curves, largest_grid, memory_curves, sampling_curves
from archbench.analysis.stats.arms import matched_line
from archbench.analysis.stats.learning_rates.sensitivity import rate_notes, rate_optima
from archbench.analysis.stats.run_costs import cost_grid, stability_grid
from archbench.analysis.stats.targets.performance_profile import lines
from archbench.analysis.stats.trusted_speeds import given
from archbench.analysis.tables.compute import compute_answers
from archbench.analysis.tables.format import flops
from archbench.analysis.tables.headings import study_name, verdict
from archbench.analysis.tables.sentences import answer
from archbench.analysis.tables.slices import slice_grids
from archbench.analysis.tables.study_tables import StudyTables
from archbench.analysis.templates import environment
from archbench.experiments.tasks.metrics import LIKELIHOOD_TYPES

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
MOST_SWITCHES = 12
LEGEND = 10
"""A figure with more models than this has no legend: the switches of the page show their colours."""
TAG = re.compile(r"\\u003c(?!(?:\\u002f)?(?:br|b|extra)\\u003e)")
"""Beginning of a tag, as Plotly writes it as JSON, that no figure has in its labels."""
HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures of the report."""

    interactive: Mapping[str, go.Figure | None]
    """By name; None where the study has nothing for a figure."""
    ladders: Mapping[str, go.Figure]
    """Capacities by ladder."""
    laws: Mapping[str, Fit]
    """Scaling laws of models with enough sizes and budgets, which a figure shows."""

    @property
    def drawn(self) -> dict[str, go.Figure]:
        """Return the figures that the study has something for."""
        ladders = {f"capacity_{name}": figure for name, figure in self.ladders.items()}
        return {name: figure for name, figure in self.interactive.items() if figure is not None} | ladders


def draw(comparison: Comparison) -> Figures:
    """Return the figures of the report.

    Raises ValueError where a run's evaluation by position cannot be read.
    """
    ladders = capacity_figures(comparison.ladders)
    laws = scaling_fits(study_points(comparison.frame, comparison.history))
    return Figures(interactive=interactive_figures(comparison, laws), ladders=ladders, laws=laws)


def interactive_figures(comparison: Comparison, laws: Mapping[str, Fit]) -> dict[str, go.Figure | None]:
    """Return the figures of every study, by name; None where the study has nothing for a figure."""
    speed = comparison.speed
    return {
        "score_over_compute": score_over_compute(comparison),
        "training_loss": loss_curves(comparison),
        "learning_curves": learning_curves(comparison),
        "final_scores": final_scores(comparison),
        "compute_to_target": compute_to_target(comparison),
        "learning_rates": rate_curves(comparison),
        "scaling_laws": scaling_curves(laws),
        "pareto_fronts": pareto_fronts(comparison),
        "further_tests": further_curves(comparison),
        "recall_maps": recall_maps(comparison),
        "positions": position_curves(comparison),
        "slices": slice_gains(comparison),
        "against": against_figure(comparison),
        "gains": forest(comparison),
        "performance_profiles": profiles(comparison),
        "speed": None if speed is None else speed_curves(speed),
        "memory": None if speed is None else memory_curves(speed),
        "sampling": None if speed is None else sampling_curves(speed),
        "largest_batches": None if speed is None else largest_curves(speed),
        "gradient_norms": gradient_norms(comparison),
    }


def render_page(comparison: Comparison, study: StudyTables, figures: Figures) -> str:
    """Return the report of a study as HTML text.

    Args:
        comparison: of the study.
        study: its ``study_tables``.
        figures: from ``draw``.
    """
    style, script = (Markup((HERE / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    return environment(HERE / "templates").get_template("page.html.j2").render(
        policy=POLICY, axes=list(AXES.values()), likelihood_types=LIKELIHOOD_TYPES,
        style=style, script=script, plotly=_packed_plotly(),
        plots={name: figure and plot_json(figure) for name, figure in figures.interactive.items()},
        needs=needs(comparison, [name for name, figure in figures.interactive.items() if figure is None]),
        **_summary(comparison, study), **_sections(comparison, study, figures),
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


def _summary(comparison: Comparison, study: StudyTables) -> dict[str, object]:
    """Return the values above the first section."""
    frame = comparison.frame
    all_panels = panels(study, frame)
    of_panels = [panel.answer for panel in all_panels]
    others = [
        *compute_answers(comparison),
        *(answer(line) for table in study.tasks for line in table.answers),
    ]
    others = [found for found in others if found not in of_panels]
    return {
        "study": study_name(frame),
        "answers": others,
        "details": [found for found in (*others, *of_panels) if found.rest],
        "panels": all_panels,
        "joined": study.joined,
        "counts": study.counts,
        "sizes": size_names(frame),
        "hours": f"{frame['training_seconds'].sum() / 3600:.2f}",
        "flops": flops(frame["training_flops"].sum()),
        "matched": matched_line(frame),
        "warnings": tables.warning_groups(comparison),
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


def _sections(comparison: Comparison, study: StudyTables, figures: Figures) -> dict[str, object]:
    """Return the tables and notes of all sections."""
    frame, speed = comparison.frame, comparison.speed
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
        "task_tables": tables.report_tables(study, frame),
        "cards": cards(comparison),
        "further_tables": [grid for table in study.tasks for grid in table.further],
        "slice_tables": list(slice_grids(comparison.slices)),
        "tables_over_tasks": study.over_tasks,
        "stability_table": stability_grid(frame, comparison.history),
        "cost_table": cost_grid(frame),
        "speed_commands": speed_commands(frame),
        "run_table": tables.run_table(frame),
        "config_tables": tables.config_tables(frame),
        "provenance": tables.provenance(frame),
        "pairs": [
            f"{task_label(p['task'], p['scale'])}: {verdict(p)}" for _, p in comparison.pairs.iterrows()
        ],
        "rate_notes": rate_notes(rate_optima(comparison.rates)),
        "laws": [
            f"{line}: E {law.show(lambda law: law.E)}, a in N* ~ C^a {law.show(lambda law: law.exponent)}. "
            + " ".join(checks(law))
            for line, law in figures.laws.items()
        ],
        "capacities": [plot_json(figure) for figure in figures.ladders.values()],
        "published": study.published,
    }


@cache
def _packed_plotly() -> str:
    """Return Plotly's script, compressed, as text."""
    return base64.b64encode(gzip.compress(plotly.offline.get_plotlyjs().encode(), 9, mtime=0)).decode()
