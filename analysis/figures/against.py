"""Scores against the column of the runs that ``study.against`` names, as one Matplotlib figure."""

from __future__ import annotations

from archbench.analysis.comparison import Comparison
from archbench.analysis.figures.files import figure_bytes
from archbench.analysis.figures.style import MATPLOTLIB_MARKERS, PALETTE, palette_indices
from archbench.analysis.load.scale_order import scale_groups
from archbench.analysis.stats.against_variable import against_title, label, line_name


def against_figure(comparison: Comparison) -> bytes | None:
    """Return scores against the variable as SVG, a panel for each task; None without ``study.against``.

    The variable's axis is logarithmic. The same frame always gives the same bytes.
    """
    scores = comparison.against
    if scores.empty:
        return None
    # Matplotlib is slow to import; studies without such a figure do not load it.
    from matplotlib.figure import Figure

    panels = list(scale_groups(scores))
    figure = Figure(figsize=(6.4 * len(panels), 4.2), layout="constrained", facecolor="white")
    palette_index = palette_indices([str(name) for name in comparison.frame["backbone"].unique()])
    for panel, (_, rows) in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), panel)
        for backbone, line in rows.groupby("backbone", sort=False):
            index = palette_index[str(backbone)]
            axes.errorbar(
                line["x"], line["score"], yerr=line["half_width"].fillna(0), capsize=3,
                color=PALETTE[index], marker=MATPLOTLIB_MARKERS[index],
                label=line_name(str(backbone), line),
            )  # fmt: skip
        ticks = sorted({float(f"{x:.3g}") for x in rows["x"]})
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.set_xlabel(label(rows["against"].iloc[0]))
        axes.set_ylabel(rows["unit"].iloc[0])
        axes.set_title(against_title(rows), fontsize="medium")
        axes.legend()
    return figure_bytes(figure, "svg")
