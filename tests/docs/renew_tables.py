"""Renews the tables that pages quote, from the frames in docs/results: ``python -m tests.docs.renew_tables``.

Run it after the frames or the form of tables have changed. ``archbench compare study=NAME`` writes the frame
of a study, ``runs/NAME/analysis/results.parquet``, to be copied to ``docs/results/NAME.parquet``. The tests
of the pages compare them with the same functions.
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from archbench.analysis import dataset
from archbench.analysis.comparison import Comparison
from archbench.analysis.files import csv_text
from archbench.analysis.load.scale_order import in_table
from archbench.analysis.stats.arms import study_setting
from archbench.analysis.stats.capacity import capacity_grids, rungs
from archbench.analysis.stats.compute.decision_accuracy import decision_accuracy
from archbench.analysis.stats.compute.multipliers import compute_multipliers
from archbench.analysis.stats.extra_tests import TRAINED, further_grid
from archbench.analysis.stats.likelihood_gap import gap_grid
from archbench.analysis.stats.text_slices import slice_table
from archbench.analysis.tables import markdown
from archbench.analysis.tables.compute import compute_grids, compute_items
from archbench.analysis.tables.decision_accuracy import decision_grids
from archbench.analysis.tables.format import budget, multiplier, si, size
from archbench.analysis.tables.markdown import escaped
from archbench.analysis.tables.study_markdown import markdown_table, render_markdown
from archbench.analysis.tables.study_tables import COLUMNS_NOTE, study_tables
from tests import ROOT
from tests.docs.canon_tables import canon_block
from tests.docs.sensitivity_table import sensitivity_block
from tests.docs.text_speed_table import speeds, with_measured_speeds

RESULTS = ROOT / "docs" / "results"
CANON = ROOT / "docs" / "models" / "canon.md"
PAGES = {"experts.md": ("experts", 2), "letters.md": ("letters", 2), "long_range.md": ("long_range", 2)}
"""Pages in docs/results with a block of tables: the frame, and the level of its headings."""
TIMES = "\N{MULTIPLICATION SIGN}"
SHORT = ("compare", "infilling", "sequence_pairs")
"""The studies of the laptop track other than text."""
SPEED_BUDGET = 4e12
"""FLOPs of the budget of the speeds of the models of text."""


def frame(name: str) -> pd.DataFrame:
    """Return a frame of docs/results."""
    return pd.read_parquet(RESULTS / f"{name}.parquet")


def text_runs() -> pd.DataFrame:
    """Return the runs of text at all budgets: of the laptop track, and a larger one of the CPU track."""
    return with_measured_speeds(pd.concat([frame("laptop"), frame("cpu_text")], ignore_index=True))


def short_runs() -> pd.DataFrame:
    """Return the runs of the laptop track other than those of text."""
    return pd.concat([frame(name) for name in SHORT], ignore_index=True)


def sensitivity_runs() -> pd.DataFrame:
    """Return the runs of text at the budgets of other conditions, and under these conditions."""
    runs = text_runs()
    compared = runs[runs["scale"].isin(["4e10_flops", "1.3e11_flops", "1.3e12_flops"])]
    return pd.concat([compared, frame("sensitivity")], ignore_index=True)


def costs() -> dict[str, list[str]]:
    """Return training speed and decoding state of each model of text at ``SPEED_BUDGET``."""
    runs, measured = text_runs(), speeds()
    states = (
        runs[runs["scale"] == f"{budget(SPEED_BUDGET)}_flops"].groupby("backbone")["state_bytes_2k"].mean()
    )
    per_second = measured[measured["flops"] == SPEED_BUDGET].set_index("model")["tokens_per_second"]
    return {str(name): [si(per_second[name]), size(state)] for name, state in states.items()}


def models_block() -> str:
    """Return score and multiplier at every second budget, and costs, of each model of text, best first."""
    multipliers = compute_multipliers(text_runs())
    budgets = sorted(multipliers["flops"].map(budget).unique(), key=float)[::2]
    scores: dict[str, dict[str, str]] = {}
    for _, row in multipliers.sort_values("score").iterrows():
        factor = multiplier(row["multiplier"], row["bound"], row["low"], row["high"])
        factor, flops = factor.replace(" [", f"{TIMES} ["), budget(row["flops"])
        scores.setdefault(str(row["model"]), {})[flops] = f"{row['score']:.3f}, {factor}"
        scores.setdefault(str(row["baseline"]), {})[flops] = f"{row['baseline_score']:.3f}, 1{TIMES}"
    costs_of = costs()
    rows = [
        [model, *(cells.get(flops, "not run") for flops in budgets), *costs_of.get(model, ["-", "-"])]
        for model, cells in scores.items()
    ]
    rows.sort(key=lambda row: row[0] in set(multipliers["baseline"]))
    head = ["model", *(f"{flops} FLOPs" for flops in budgets), "tokens/s", "state"]
    return "\n".join([*markdown.table(head, rows), ""])


def scores_block(comparison: Comparison) -> str:
    """Return as Markdown the table of each task and the gap between likelihood types, without sentences."""
    lines: list[str] = []
    for task in study_tables(comparison).tasks:
        lines += [f"## {escaped(task.title)}", "", *markdown_table(task.body.models().narrow()[0]), ""]
        lines += [escaped(" ".join([task.held_equal, *task.references])), ""]
        if not (gaps := in_table(comparison.gaps, task.task, task.scale)).empty:
            grid = gap_grid(gaps)
            lines += [f"### {escaped(grid.title)}", "", *markdown.table(grid.head, grid.rows), ""]
    return "\n".join([*lines, COLUMNS_NOTE]) + "\n"


def compute_block(runs: pd.DataFrame) -> str:
    """Return the sentences and the table of text over compute."""
    comparison = Comparison(runs)
    [grid] = compute_grids(comparison.multipliers, study_setting(runs, "explains"))
    return "\n".join([*compute_items(comparison), *markdown.table(grid.head, grid.rows), "", grid.note, ""])


def cpu_text_block() -> str:
    """Return text over compute at all budgets, and how well smaller budgets predict the largest."""
    [grid] = decision_grids(decision_accuracy(text_runs()))
    decisions = [f"## {grid.title}", "", *markdown.table(grid.head, grid.rows), "", grid.note, ""]
    return compute_block(text_runs()) + "\n" + "\n".join(decisions)


def page_block(name: str, level: int) -> str:
    """Return the tables of a frame as Markdown, with headings of a level."""
    text = render_markdown(study_tables(Comparison(frame(name))))
    text = text[text.index("## ") :]
    return re.sub(r"^#(#+) ", lambda found: "#" * (level - 2) + found[0], text, flags=re.MULTILINE)


def length_scores() -> pd.DataFrame:
    """Return the accuracies by length of the studies of recurrent state."""
    return pd.concat([Comparison(frame(name)).further for name in ("state_tracking", "induction")])


def length_block() -> str:
    """Return the table of accuracies at the trained length and at eight times that length."""
    tests = {TRAINED: "32 tokens", "sequence_length=256": "256 tokens"}
    rows = []
    for task, scores in length_scores().groupby("task", sort=False):
        grid = further_grid(scores[scores["test"].isin(tests)])
        rows += [[str(task), *row] for row in grid.rows]
    return "\n".join([*markdown.table(["task", "model", *tests.values()], rows), ""])


def capacity_block() -> str:
    """Return the table of each ladder of study=capacity."""
    lines = []
    for grid in capacity_grids(rungs(frame("capacity"))):
        lines += [f"### {grid.title}", "", *markdown.table(grid.head, grid.rows), ""]
    return "\n".join(lines)


def blocks() -> dict[Path, str]:
    """Return what stands between the marks of each page."""
    pages = {RESULTS / page: page_block(name, level) for page, (name, level) in PAGES.items()}
    pages[RESULTS / "state_space.md"] = length_block()
    pages[RESULTS / "capacity.md"] = capacity_block()
    pages[RESULTS / "main_comparison.md"] = compute_block(with_measured_speeds(frame("laptop")))
    pages[RESULTS / "text.md"] = cpu_text_block()
    pages[CANON] = canon_block(frame("canon"))
    pages[RESULTS / "sensitivity.md"] = sensitivity_block(sensitivity_runs())
    return pages


def quoted(page: Path, name: str = "table") -> str:
    """Return what a page has between the marks of a name."""
    return page.read_text().split(begin(name))[1].split(end(name))[0]


def begin(name: str = "table") -> str:
    """Return the mark before a block of a page."""
    return f"<!-- {name}:begin -->\n"


def end(name: str = "table") -> str:
    """Return the mark after a block of a page."""
    return f"<!-- {name}:end -->"


def renew(page: Path, block: str, name: str = "table") -> None:
    """Write the block of a page."""
    before, after = begin(name), end(name)
    page.write_text(page.read_text().replace(before + quoted(page, name) + after, before + block + after))


def main() -> None:
    """Write the blocks, and the files that are generated whole."""
    for page, block in blocks().items():
        renew(page, block)
    renew(RESULTS / "text.md", models_block(), "models")
    renew(RESULTS / "main_comparison.md", compute_block(frame("main")), "main")
    (RESULTS / "state_space.csv").write_text(csv_text(length_scores()))
    (RESULTS / "compare.md").write_text(scores_block(Comparison(short_runs())))
    (RESULTS / "compare_pairs.csv").write_text(csv_text(Comparison(short_runs()).pairs))
    (RESULTS / "text.csv").write_text(csv_text(compute_multipliers(text_runs())))
    (RESULTS / "laptop.csv").write_text(csv_text(compute_multipliers(with_measured_speeds(frame("laptop")))))
    (RESULTS / "laptop_slices.csv").write_text(csv_text(slice_table(frame("laptop"))))
    dataset.publish(dataset.read_dataset(dataset.DatasetConfig(folder=str(RESULTS))))


if __name__ == "__main__":
    main()
