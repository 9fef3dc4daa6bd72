"""The bridge from probes to text: rank correlation of each workload with each target, in one figure."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from analysis.figures.style import PALETTE, REFERENCE_COLOUR

MOST_TARGETS = 3


def bridge_figure(table: pd.DataFrame) -> Figure | None:
    """Draw Spearman's rho with its 95% interval over models, a panel for each target; None without targets.

    Models are those of the most frequent likelihood type. Thick bars: the middle 95% over resampled seeds.

    Args:
        table: from ``analysis.stats.bridge.bridge``.
    """
    defined = table[table["rho"].notna()]
    if defined.empty:
        return None
    likelihood = defined.groupby("likelihood")["models"].max().idxmax()
    defined = defined[defined["likelihood"] == likelihood]
    targets = list(dict.fromkeys(defined["target"]))[:MOST_TARGETS]
    first_rows = defined[defined["target"] == targets[0]]
    order = [*first_rows.sort_values("rho")["task"], *sorted(set(defined["task"]) - set(first_rows["task"]))]
    size = (2.2 + 2.6 * len(targets), 1.3 + 0.32 * len(order))
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    for panel, target in enumerate(targets, start=1):
        axes = figure.add_subplot(1, len(targets), panel)
        axes.axvline(0, color=REFERENCE_COLOUR, linewidth=0.8)
        for _, row in defined[defined["target"] == target].iterrows():
            height = order.index(row["task"])
            axes.plot([row["rho_low"], row["rho_high"]], [height] * 2, color=PALETTE[0], linewidth=1)
            axes.plot(
                [row["seeds_low"], row["seeds_high"]], [height] * 2, color=PALETTE[0], linewidth=4, alpha=0.35
            )
            axes.plot([row["rho"]], [height], color=PALETTE[0], marker="o")
        axes.set_xlim(-1.05, 1.05)
        axes.set_ylim(-0.6, len(order) - 0.4)
        axes.set_yticks(range(len(order)), order if panel == 1 else [""] * len(order))
        axes.set_xlabel("Spearman's rho over models")
        axes.set_title(f"{target} ({likelihood}, {int(defined['models'].max())} models)", fontsize="small")
    return figure
