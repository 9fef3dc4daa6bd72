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

from archbench.analysis.comparison import NO_CURVES, Comparison
from archbench.analysis.figures.matplotlib_export import FILE_FORMATS, printed
from archbench.analysis.figures.verdicts import verdict_figure
from archbench.analysis.files import csv_text, parquet, write
from archbench.analysis.load.arm_names import arm_names_without_folders
from archbench.analysis.load.object_columns import with_objects
from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.report.page import Figures, draw, render_page
from archbench.analysis.speed.rows import load_all_modes
from archbench.analysis.stats.arms import study_setting
from archbench.analysis.stats.capacity import capacity_frame
from archbench.analysis.stats.targets.steps_to_loss import with_steps
from archbench.analysis.stats.warnings import with_warnings
from archbench.analysis.tables.headings import study_name
from archbench.analysis.tables.latex import render_latex
from archbench.analysis.tables.study_markdown import render_markdown
from archbench.analysis.tables.study_tables import StudyTables, study_tables
from archbench.analysis.tables.task_grid import grid_markdown, task_grid, terminal_grids
from archbench.analysis.tables.terminal import grid_parts, render_tables, study_text, wrapped
from archbench.experiments.config.options import run_command
from archbench.experiments.runtime.console import table_console
from archbench.experiments.runtime.errors import nearest
from archbench.experiments.tracking.results_frame import NEEDED, read_results

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
class Study:
    """A study with its comparison and the figures of its page."""

    config: CompareConfig
    comparison: Comparison
    tables: StudyTables
    figures: Figures

    @property
    def folder(self) -> Path:
        """Return the folder of the results."""
        name = study_name(self.comparison.frame) if self.config.frame else self.config.study
        return Path(self.config.out) if self.config.out else Path(self.config.runs) / name / "analysis"


def prepare(config: CompareConfig) -> Study:
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
    comparison = Comparison(with_objects(frame), history, speed)
    return Study(
        config=config, comparison=comparison, tables=study_tables(comparison), figures=draw(comparison)
    )


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


def publish(study: Study) -> None:
    """Write the files of a study into its folder, then print its tables."""
    comparison = study.comparison
    grid = task_grid(comparison.frame)
    contents = table_files(study, grid) | figure_files(study)
    for name, content in contents.items():
        write(study.folder / name, content)
    print_tables(study, grid)
    page, *others = sorted(contents, key=lambda name: not name.endswith(".html"))
    print(f"wrote {study.folder / page}")
    table_console().print(wrapped(f"beside it: {', '.join(others)}"))
    for answer in study.tables.over_compute:  # again, as the last lines of a terminal are read first
        table_console().print(wrapped(f"\n{answer}"))


def print_tables(study: Study, grid: pd.DataFrame) -> None:
    """Print the tables of a study, and that of all its tasks where it has several."""
    wide, console = study.config.wide, table_console()
    if console.is_terminal:
        console.print(study_text(study.tables, wide=wide), crop=False)
    else:
        print(render_tables(study.tables, wide=wide))
    if not grid.empty and grid["task"].nunique() > 1:
        for part in (part for tasks in terminal_grids(grid) for part in grid_parts(tasks)):
            console.print(part)


def table_files(study: Study, grid: pd.DataFrame) -> dict[str, str | bytes]:
    """Return the contents of the tables of a study, by the name of the file.

    Args:
        study: the study.
        grid: its ``task_grid``.
    """
    comparison, ladders = study.comparison, study.comparison.ladders
    results = with_warnings(comparison.frame, comparison.warnings)
    tables = {
        "table": comparison.arms,
        "pairs": comparison.pairs,
        "slices": comparison.slices,
        **({} if grid.empty else {"task_grid": grid}),
        **({} if comparison.multipliers.empty else {"compute": comparison.multipliers}),
        **({} if ladders.empty else {"capacity": capacity_frame(ladders)}),
        **({} if comparison.decisions.empty else {"decision_accuracy": comparison.decisions}),
    }
    return {
        "results.csv": csv_text(results),
        "results.parquet": parquet(results),
        "table.md": render_markdown(study.tables, wide=study.config.wide),
        "table.tex": render_latex(study.tables),
        "compare.html": render_page(comparison, study.tables, study.figures),
        **{f"{name}.csv": csv_text(with_warnings(t, comparison.warnings)) for name, t in tables.items()},
        **({} if grid.empty else {"task_grid.md": grid_markdown(grid, comparison.warnings)}),
    }


def figure_files(study: Study) -> dict[str, str | bytes]:
    """Return the contents of the figures of a study, by the name of the file."""
    contents: dict[str, str | bytes] = {}
    if (verdicts := verdict_figure(study.comparison)) is not None:
        for kind in ("svg", "png"):
            contents[f"verdicts.{kind}"] = printed(verdicts, kind, VERDICTS_DPI)
    if (against := study.figures.interactive["against"]) is not None:
        contents["against.svg"] = printed(against, "svg")
    for name, ladder in study.figures.ladders.items():
        contents |= {f"capacity_{name}.{kind}": printed(ladder, kind) for kind in ("svg", "png")}
    if study.config.figures:
        for name, figure in study.figures.drawn.items():
            contents |= {f"figures/{name}.{kind}": printed(figure, kind) for kind in FILE_FORMATS}
    return contents


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0, 2 for a mistake in the arguments, 3 for a frame that cannot be used."""
    return run_command(__doc__, CompareConfig, arguments, prepare, publish)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
