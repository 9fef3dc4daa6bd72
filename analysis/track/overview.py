"""The heat map of a track: which models win on which workloads."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from archbench.analysis.declared.tracks import Track
from archbench.analysis.stats.verdicts.verdict import BETTER, WORSE
from archbench.analysis.track.results import tally

INCHES = (1.05, 0.36)
"""Width and height of a cell."""
DARK = 0.75
"""Share above which a cell is so dark that its text is white."""
CAPTION = (
    "Mean score. Colour: share of the models of its type that a model is better than (blue), minus the share "
    "that it is worse than (red); white: undecided."
)


def overview(track: Track, arms: pd.DataFrame, pairs: pd.DataFrame) -> Figure | None:
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
    figure = Figure(
        figsize=(max(7.0, 2 + INCHES[0] * len(tasks)), 1.5 + INCHES[1] * len(models)), layout="constrained"
    )
    axes = figure.add_subplot()
    better, worse = (counts[v] if v in counts else pd.Series(0, counts.index) for v in (BETTER, WORSE))
    lead = (better - worse) / counts.drop(columns="likelihood").sum(axis=1)
    shares = [[float(lead.get((model, task), 0.0)) for task in tasks] for model in models]
    axes.pcolormesh(shares, cmap="RdBu", vmin=-1.3, vmax=1.3, edgecolors="white")
    for row, model in enumerate(models):
        for column, task in enumerate(tasks):
            if (model, task) in arms.index:
                text = f"{arms.loc[(model, task), 'score']:.3f}"
                colour = "white" if abs(shares[row][column]) > DARK else "black"
                axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=9, color=colour)
    axes.set_xticks([index + 0.5 for index in range(len(tasks))], [t.replace("_", "\n") for t in tasks])
    axes.set_yticks([index + 0.5 for index in range(len(models))], models)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    axes.set_xlabel(CAPTION, fontsize=9)
    return figure
