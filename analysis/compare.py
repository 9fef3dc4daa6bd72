"""Compare the models of a study: print its tables; write its frames, its figures and its page.

    archbench compare study=compare [out=FOLDER] [speed=rows.parquet] [--wide] [--allow-mixed] [--figures]
    archbench compare study=one,two
    archbench compare frame=docs/results/compare.parquet out=FOLDER

Prints what wins, by how much and how surely, then a table for each task, and one of all tasks that are scored
by an accuracy; for multiple studies also what differs between them. Writes results.csv and results.parquet (a
row for each run), table.csv, table.md and table.tex (a row for each model), pairs.csv (a row for each two
models that are compared), slices.csv (a row for each slice of a text of each model), task_grid.csv and
task_grid.md (all tasks, with the 95% Wilson interval of each rate of solving), verdicts.svg and verdicts.png
(each model's difference from the baseline, with its 95% interval) and compare.html, a page with all figures,
which opens without a network. Where the study has them: compute.csv and decision_accuracy.csv (several
budgets), against.svg (study.against), capacity.csv and for each ladder capacity_LADDER.svg and .png
(study.ladder).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from archbench.analysis.figures.against import against_figure
from archbench.analysis.figures.capacity import capacity_figures
from archbench.analysis.figures.files import FILE_FORMATS, figure_bytes
from archbench.analysis.figures.matplotlib_export import printed
from archbench.analysis.figures.verdicts import verdict_figure
from archbench.analysis.files import csv_text, parquet, write
from archbench.analysis.load.arm_names import arm_names_without_folders
from archbench.analysis.load.object_columns import with_objects
from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.report.page import Findings, find, render_page
from archbench.analysis.speed.rows import load_all_modes
from archbench.analysis.stats.arms import study_setting
from archbench.analysis.stats.capacity import capacity_frame
from archbench.analysis.stats.computed import Computed
from archbench.analysis.stats.targets.steps_to_loss import with_steps
from archbench.analysis.stats.warnings import with_warnings
from archbench.analysis.tables.compute import over_compute
from archbench.analysis.tables.headings import study_name
from archbench.analysis.tables.latex import render_latex
from archbench.analysis.tables.task_grid import grid_markdown, task_grid, terminal_grids
from archbench.analysis.tables.terminal import grid_parts, wrapped
from archbench.analysis.tables.text import render_markdown, render_tables, study_text
from archbench.experiments.config.options import run_command
from archbench.experiments.runtime.console import table_console
from archbench.experiments.runtime.errors import nearest
from archbench.experiments.tracking.results_frame import NEEDED, read_results

NO_CURVES = pd.DataFrame(columns=["path", "kind", "step", "tokens", "flops", "seconds"])
"""The history of a stored frame, which has none."""
VERDICTS_DPI = 200
"""Dots per inch of verdicts.png: twice those at which it is displayed, for sharp screens."""


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """The study to compare, and where the results go."""

    study: str = "compare"
    """The study to read, a folder inside ``runs``; for multiple studies, their names separated by commas."""
    runs: str = "runs"
    """The folder of all studies."""
    frame: str = ""
    """A ``results.parquet`` of this command, read instead of run folders; empty for none."""
    out: str = ""
    """Where the results go; empty for ``RUNS/STUDY/analysis``."""
    speed: str = ""
    """Parquet or JSON file of rows of ``archbench benchmark``, for the page; empty for none."""
    wide: bool = False
    """Print all columns, not those that fit 80 characters."""
    baseline: str = ""
    """A model that the others are compared with, in place of ``study.baseline``; empty for that."""
    allow_mixed: bool = False
    """Rank models of different likelihood types against each other."""
    figures: bool = False
    """Write each figure of the page into figures/ too, as SVG, PDF and PNG."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The runs of a study, with everything that is computed from them."""

    config: CompareConfig
    computed: Computed
    history: pd.DataFrame
    page: Findings

    @property
    def frame(self) -> pd.DataFrame:
        """Return the runs."""
        return self.computed.frame

    @property
    def folder(self) -> Path:
        """Return the folder of the results."""
        name = study_name(self.frame) if self.config.frame else self.config.study
        return Path(self.config.out) if self.config.out else Path(self.config.runs) / name / "analysis"


def prepare(config: CompareConfig) -> Comparison:
    """Read a study, and draw what its page shows. Raises ValueError."""
    if config.frame:
        frame, history = stored_frame(Path(config.frame)), NO_CURVES
    else:
        frame = load_study(Path(config.runs), config.study)
        history = load_history(Path(config.runs), config.study)
        frame = with_steps(frame, history)
    frame = frame.assign(allow_mixed=config.allow_mixed)
    if config.baseline:
        frame = with_baseline(frame, config.baseline)
    speed = load_all_modes(Path(config.speed)) if config.speed else None
    computed = Computed(with_objects(frame))
    page = find(computed.frame, history, speed, computed)
    return Comparison(config=config, computed=computed, history=history, page=page)


def with_baseline(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the runs with another baseline. Raises ValueError if the study has no such model."""
    models = {str(model) for column in ("arm", "backbone") for model in frame[column].dropna()}
    if name not in models:
        raise ValueError(f"baseline={name} is no model of {study_name(frame)}{nearest(name, models)}")
    return frame.assign(baseline=name, baseline_chosen=name != study_setting(frame, "baseline"))


def stored_frame(path: Path) -> pd.DataFrame:
    """Return the runs of a Parquet file, whose paths name no folder here. Raises DataError.

    A folder of the same name may have other runs: results, configurations and scores by position are not read
    from it.
    """
    frame = read_results(path, {*NEEDED, "study", "task", "backbone", "direction"}).to_pandas()
    if "arm" in frame and "path" in frame:
        return frame.assign(path=[f"{path}/{folder.lstrip('/')}" for folder in frame["path"]])
    # Frames of tracks have neither: they name places of one machine.
    keys = frame["study"] + "/" + frame["cell"] + "-" + frame["digest"] + "/s" + frame["seed"].astype(str)
    return frame.assign(path=f"{path}/" + keys, arm=arm_names_without_folders(frame))


def publish(comparison: Comparison) -> None:
    """Write the files of a study into its folder, then print its tables."""
    computed = comparison.computed
    grid, warnings = task_grid(comparison.frame), computed.warnings
    contents = table_files(comparison, warnings) | figure_files(comparison)
    if not grid.empty:
        contents["task_grid.csv"] = csv_text(with_warnings(grid, warnings))
        contents["task_grid.md"] = grid_markdown(grid, warnings)
    if not computed.multipliers.empty:
        contents["compute.csv"] = csv_text(with_warnings(computed.multipliers, warnings))
    if not (ladders := computed.ladders).empty:
        contents["capacity.csv"] = csv_text(with_warnings(capacity_frame(ladders), warnings))
        for name, figure in capacity_figures(ladders).items():
            for kind in ("svg", "png"):
                contents[f"capacity_{name}.{kind}"] = figure_bytes(figure, kind)
    if not computed.decisions.empty:
        contents["decision_accuracy.csv"] = csv_text(with_warnings(computed.decisions, warnings))
    for name, content in contents.items():
        write(comparison.folder / name, content)
    print_tables(comparison, grid)
    page, *others = sorted(contents, key=lambda name: not name.endswith(".html"))
    print(f"wrote {comparison.folder / page}")
    table_console().print(wrapped(f"beside it: {', '.join(others)}"))
    for answer in over_compute(
        comparison.frame, computed.multipliers
    ):  # again, as the last lines of a terminal are read first
        table_console().print(wrapped(f"\n{answer}"))


def print_tables(comparison: Comparison, grid: pd.DataFrame) -> None:
    """Print the tables of a study, and that of all its tasks where it has several."""
    computed, wide, console = comparison.computed, comparison.config.wide, table_console()
    if console.is_terminal:
        console.print(study_text(computed, wide=wide), crop=False)
    else:
        print(render_tables(computed.frame, wide=wide, computed=computed))
    if not grid.empty and grid["task"].nunique() > 1:
        for part in (part for tasks in terminal_grids(grid) for part in grid_parts(tasks)):
            console.print(part)


def table_files(comparison: Comparison, warnings: list[str]) -> dict[str, str | bytes]:
    """Return the contents of the tables of a study, by the name of the file."""
    frame, computed = comparison.frame, comparison.computed
    results, arms = with_warnings(frame, warnings), with_warnings(computed.arms, warnings)
    return {
        "results.csv": csv_text(results),
        "results.parquet": parquet(results),
        "table.csv": csv_text(arms),
        "table.md": render_markdown(frame, wide=comparison.config.wide, computed=computed),
        "table.tex": render_latex(frame, computed),
        "pairs.csv": csv_text(with_warnings(computed.pairs, warnings)),
        "slices.csv": csv_text(with_warnings(computed.slices, warnings)),
        "compare.html": render_page(frame, comparison.history, comparison.page, computed),
    }


def figure_files(comparison: Comparison) -> dict[str, str | bytes]:
    """Return the contents of the figures of a study, by the name of the file."""
    contents: dict[str, str | bytes] = {}
    if (verdicts := verdict_figure(comparison.frame, comparison.computed.arms)) is not None:
        for kind in ("svg", "png"):
            contents[f"verdicts.{kind}"] = figure_bytes(verdicts, kind, VERDICTS_DPI)
    if (against := against_figure(comparison.frame, comparison.computed.against)) is not None:
        contents["against.svg"] = against
    if comparison.config.figures:
        figures = {name: figure for name, figure in comparison.page.figures.items() if figure is not None}
        for name, figure in figures.items():
            contents |= {f"figures/{name}.{kind}": printed(figure, kind) for kind in FILE_FORMATS}
    return contents


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0, 2 for a mistake in the arguments, 3 for a frame that cannot be used."""
    return run_command(__doc__, CompareConfig, arguments, prepare, publish)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
