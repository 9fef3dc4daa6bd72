"""Draw the verdict figure of a study: each model's difference from the baseline, with its 95% interval.

    archbench verdicts study=compare
    archbench verdicts frame=docs/results/compare.parquet out=docs/results

Writes STUDY.svg and STUDY.png.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from analysis.cli import run_command, write
from analysis.figures.files import figure_bytes
from analysis.figures.verdicts import verdict_figure
from analysis.load.study import load_study
from analysis.tables.headings import study_name
from experiments.tracking.results_frame import NEEDED, read_results

FORMATS = ("svg", "png")
DPI = 200
"""Dots per inch of the PNG: twice those at which it is shown, for sharp screens."""


@dataclass(frozen=True, kw_only=True)
class VerdictsConfig:
    """Which study to draw, and where the figure goes."""

    study: str = "compare"
    """The study to read, a folder inside ``runs``; of several, the names with commas between them."""
    runs: str = "runs"
    """The folder of all studies."""
    frame: str = ""
    """``results.parquet`` of ``archbench compare``, read instead of the run folders; empty for none."""
    out: str = ""
    """Where the figure goes; empty for ``RUNS/STUDY/analysis``."""

    @property
    def folder(self) -> Path:
        return Path(self.out) if self.out else Path(self.runs) / self.study / "analysis"


def read_frame(path: Path) -> pd.DataFrame:
    """Read a frame that ``analysis.compare`` wrote. Raises DataError."""
    return read_results(path, {*NEEDED, "study", "task", "arm"}).to_pandas()


def prepare(config: VerdictsConfig) -> tuple[VerdictsConfig, str, Figure]:
    """Return the config, the name of the study and its figure. Raises ValueError."""
    if config.frame:
        frame = read_frame(Path(config.frame))
    else:
        frame = load_study(Path(config.runs), config.study)
    figure, study = verdict_figure(frame), study_name(frame)
    if figure is None:
        raise ValueError(f"study={study} has no model with a score yet")
    return config, study, figure


def publish(config: VerdictsConfig, study: str, figure: Figure) -> None:
    """Write the figure."""
    for kind in FORMATS:
        print(f"wrote {write(config.folder / f'{study}.{kind}', figure_bytes(figure, kind, DPI))}")


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0, 2 for a mistake in the arguments, 3 for a frame that cannot be used."""
    return run_command(__doc__, VerdictsConfig, arguments, prepare, lambda found: publish(*found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
