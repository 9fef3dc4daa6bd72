"""The heat map of a track: which models win on which workloads."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from archbench.analysis.declared.tracks import Track
from archbench.analysis.figures.style import make_panels
from archbench.analysis.stats.verdicts.verdict import BETTER, WORSE
from archbench.analysis.track.results import tally

CELL = (105, 36)
"""Width and height of a cell in pixels."""
CAPTION = (
    "Mean score. Colour: share of the models of its type that a model is better than (blue), minus the share "
    "that it is worse than (red); white: undecided."
)


def overview(track: Track, arms: pd.DataFrame, pairs: pd.DataFrame) -> go.Figure | None:
    """Return the heat map of models by workloads; None if no two models can be compared yet.

    A cell contains the mean score. Its colour is the number of models of the same likelihood type that the
    model is better than, minus those it is worse than, as a fraction of all: blue is better than all, red
    worse than all, white undecided or not compared.

    Args:
        track: the rules.
        arms: from ``analysis.stats.arms.arm_table``.
        pairs: from ``analysis.stats.pairs.pair_verdicts``.
    """
    counts = tally(pairs)
    if counts.empty:
        return None
    arms = arms.query("kind == 'arm' and seeds > 0").set_index(["arm", "task"])
    counts = counts.set_index(["model", "task"])
    scored = {str(name) for name in arms.index.get_level_values("arm")}
    tasks = [w.name for w in track.workloads if w.name in arms.index.get_level_values("task")]
    models = [*(name for name in track.backbones if name in scored), *sorted(scored - set(track.backbones))]
    better, worse = (counts[v] if v in counts else pd.Series(0, counts.index) for v in (BETTER, WORSE))
    lead = (better - worse) / counts.drop(columns="likelihood").sum(axis=1)
    scores = arms["score"]
    figure, [cell] = make_panels([""])
    cells = go.Heatmap(
        z=[[float(lead.get((model, task), 0.0)) for task in tasks] for model in models],
        text=[
            [f"{scores[model, task]:.3f}" if (model, task) in scores else "" for task in tasks]
            for model in models
        ],
        texttemplate="%{text}", colorscale="RdBu", zmin=-1.3, zmax=1.3, xgap=1, ygap=1, showscale=False,
        x=[task.replace("_", "<br>") for task in tasks], y=models,
        hovertemplate="<b>%{y}</b>, %{x}: %{text}<extra></extra>",
    )  # fmt: skip
    figure.add_trace(cells, **cell)
    bare = {"ticks": "", "showline": False}
    figure.update_xaxes(type="category", side="top", **bare, **cell)
    figure.update_yaxes(type="category", autorange="reversed", **bare, **cell)
    figure.add_annotation(
        text=CAPTION, xref="paper", yref="paper", x=0.5, y=0, yanchor="top", showarrow=False,
        font={"size": 12.5},
    )  # fmt: skip
    width, height = max(700, 200 + CELL[0] * len(tasks)), 150 + CELL[1] * len(models)
    return figure.update_layout(width=width, height=height)
