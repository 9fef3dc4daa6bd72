"""Compare the models of a study: print its tables, write its frames and its report.

    archbench compare study=compare [runs=runs] [out=FOLDER] [--wide] [--allow-mixed]
    archbench compare study=one,two

Prints what wins, by how much and how surely, then a table for each task; of several studies also what
differs between them. Writes results.csv and results.parquet (a row for each run), table.csv, table.md and
table.tex (a row for each model), pairs.csv (a row for each two models that are compared), slices.csv (a row
for each slice of a text of each model) and compare.html; against.svg too, where the study has study.against.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.console import Console

from analysis.cli import csv_text, parquet, run_command, write
from analysis.figures.against import against_figure
from analysis.load.study import load_history, load_study
from analysis.report.page import Findings, find, render_page
from analysis.stats.comparisons import comparisons
from analysis.stats.targets.steps_to_loss import with_steps
from analysis.stats.text_slices import slice_table
from analysis.stats.versus_baseline import with_differences
from analysis.stats.warnings import study_warnings, with_warnings
from analysis.tables.columns import WIDTH
from analysis.tables.latex import render_latex
from analysis.tables.text import render_markdown, render_tables, study_text


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """The study to compare, and where the results go."""

    study: str = "compare"
    """The study to read, a folder inside ``runs``; of several, the names with commas between them."""
    runs: str = "runs"
    """The folder of all studies."""
    out: str = ""
    """Where the results go; empty for ``RUNS/STUDY/analysis``."""
    wide: bool = False
    """Print all columns, not the eight that fit 100 characters."""
    allow_mixed: bool = False
    """Rank models of different likelihood types against each other."""

    def __post_init__(self) -> None:
        if not self.study:
            raise ValueError("study= is empty: name a folder of runs, for example study=compare")
        if not self.runs:
            raise ValueError("runs= is empty: name the folder of all studies, for example runs=runs")

    @property
    def folder(self) -> Path:
        return Path(self.out) if self.out else Path(self.runs) / self.study / "analysis"


def publish(frame: pd.DataFrame, history: pd.DataFrame, found: Findings, config: CompareConfig) -> None:
    """Write the files of a study into its folder, then print its tables."""
    warnings = study_warnings(frame)
    results, arms = with_warnings(frame, warnings), with_warnings(with_differences(frame), warnings)
    contents: dict[str, str | bytes] = {
        "results.csv": csv_text(results),
        "results.parquet": parquet(results),
        "table.csv": csv_text(arms),
        "table.md": render_markdown(frame, wide=config.wide),
        "table.tex": render_latex(frame),
        "pairs.csv": csv_text(with_warnings(comparisons(frame), warnings)),
        "slices.csv": csv_text(with_warnings(slice_table(frame), warnings)),
        "compare.html": render_page(frame, history, found),
    }
    if (drawn := against_figure(frame)) is not None:
        contents["against.svg"] = drawn
    paths = [write(config.folder / name, content) for name, content in contents.items()]
    if sys.stdout.isatty():
        Console(width=max(Console().width, WIDTH)).print(study_text(frame, wide=config.wide), crop=False)
    else:
        print(render_tables(frame, wide=config.wide))
    print("\n".join(f"wrote {path}" for path in paths), flush=True)


def prepare(config: CompareConfig) -> tuple[pd.DataFrame, pd.DataFrame, Findings, CompareConfig]:
    """Return frame and history of a study, what its page shows, and the config. Raises ValueError."""
    frame = load_study(Path(config.runs), config.study)
    history = load_history(Path(config.runs), config.study)
    frame = with_steps(frame, history).assign(allow_mixed=config.allow_mixed)
    return frame, history, find(frame, history), config


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0, or 2 where the person asked for something that is not there."""
    return run_command(__doc__, CompareConfig, arguments, prepare, lambda found: publish(*found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
