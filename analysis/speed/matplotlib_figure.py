"""Speed and memory against length, or denoising steps for infilling, as one Matplotlib figure."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from archbench.analysis.figures.style import MATPLOTLIB_MARKERS, PALETTE, palette_indices
from archbench.analysis.speed.rows import milliseconds, model_memory


def draw(frame: pd.DataFrame) -> Figure:
    """Draw tokens per second, milliseconds with quartiles, and MiB, in a column for each group of rows.

    All rows have one mode. For infilling there is a column for each group and length.
    """
    mode = frame["mode"].iloc[0]
    across = "steps" if mode == "sample" else "context"
    frame = frame.assign(mebibytes=model_memory(frame) / 2**20)
    by = ["order", "group", *["context"] * (mode == "sample")]
    groups = list(frame.groupby(by, sort=True))
    palette_index = palette_indices([str(name) for name in frame["backbone"].unique()])
    figure = Figure(figsize=(1.2 + 4.4 * len(groups), 10.0), facecolor="white", layout="constrained")
    panels = figure.subplots(3, len(groups), sharex="col", sharey="row", squeeze=False)
    for column, (key, group_rows) in enumerate(groups):
        for backbone, rows in group_rows.groupby("backbone", sort=True):
            _lines([panels[line][column] for line in range(3)], str(backbone), rows, across, palette_index)
        title = key[1] + (f", {key[2]:,} tokens" if mode == "sample" else "")
        panels[0][column].set_title(title, fontsize=11)
        panels[2][column].set_xlabel("denoising steps" if mode == "sample" else "context, tokens")
        values = sorted(int(value) for value in group_rows[across].unique())
        for panel in panels[:, column]:
            panel.set_xscale("log", base=2)
            if any(value > 0 for line in panel.get_lines() for value in line.get_ydata()):
                panel.set_yscale("log")
            panel.set_xticks(values, [f"{value:,}" for value in values])
            panel.grid(which="both", color="#E4E4E4", linewidth=0.6)
            panel.set_axisbelow(True)
            panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("committed tokens per second" if mode == "sample" else "tokens per second")
    panels[1][0].set_ylabel(milliseconds(mode))
    panels[2][0].set_ylabel("peak memory of the model, MiB")
    handles = {
        label: handle
        for panel in panels[0]
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside upper center", ncols=len(handles), frameon=False)
    return figure


def _lines(panels: list[Any], backbone: str, rows: pd.DataFrame, across: str, index: dict[str, int]) -> None:
    """Draw one backbone's line in each panel of a column."""
    look = {"color": PALETTE[index[backbone]], "marker": MATPLOTLIB_MARKERS[index[backbone]]}
    rows = rows.sort_values(across)
    low, middle, high = (
        1000 * rows[f"seconds_{name}"] for name in ("first_quartile", "median", "third_quartile")
    )
    panels[0].plot(rows[across], rows["tokens_per_second"], label=backbone, **look)
    panels[1].errorbar(rows[across], middle, yerr=[middle - low, high - middle], capsize=2, **look)
    panels[2].plot(rows[across], rows["mebibytes"], **look)
