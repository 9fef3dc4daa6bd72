"""Write the report of a study: one HTML file that opens offline, and every figure for papers.

    archbench report study=compare [runs=runs] [out=FOLDER] [speed=FILE.parquet]

Writes report.html, which opens from disk without a network, and each of its figures as
figures/NAME.svg, .pdf and .png. Parts for which the study has no data say what to run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.cli import run_command, write
from analysis.figures.files import FILE_FORMATS
from analysis.figures.matplotlib_export import printed
from analysis.load.study import load_history, load_study
from analysis.report.page import Findings, find, render_page
from analysis.speed.rows import MODES, load_speed
from analysis.stats.targets.steps_to_loss import with_steps


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """The study to report, and where the report goes."""

    study: str = "compare"
    """The study to read, a folder inside ``runs``; of several, the names with commas between them."""
    runs: str = "runs"
    """The folder of all studies."""
    out: str = ""
    """Where the report goes; empty for ``RUNS/STUDY/report``."""
    speed: str = ""
    """Parquet or JSON file of rows of ``archbench benchmark``; empty for none."""

    def __post_init__(self) -> None:
        for name in ("study", "runs"):
            if not getattr(self, name):
                raise ValueError(f"{name}= is empty: write for example study=compare runs=runs")

    @property
    def folder(self) -> Path:
        return Path(self.out) if self.out else Path(self.runs) / self.study / "report"


def read_speed(path: Path) -> pd.DataFrame:
    """The rows of every mode that was measured. Raises ValueError where there is none."""
    found, missing = [], []
    for mode in MODES:
        try:
            found.append(load_speed(path, mode))
        except ValueError as error:
            missing.append(str(error))
    if not found:
        raise ValueError(missing[0])
    return pd.concat(found, ignore_index=True)


def prepare(config: ReportConfig) -> tuple[ReportConfig, pd.DataFrame, pd.DataFrame, Findings]:
    """The frame and the history of a study, and what its page shows. Raises ValueError."""
    frame = load_study(Path(config.runs), config.study)
    history = load_history(Path(config.runs), config.study)
    frame = with_steps(frame, history)
    speed = read_speed(Path(config.speed)) if config.speed else None
    return config, frame, history, find(frame, history, speed)


def publish(config: ReportConfig, frame: pd.DataFrame, history: pd.DataFrame, found: Findings) -> None:
    """Write the page and its figures."""
    path = write(config.folder / "report.html", render_page(frame, history, found))
    print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")
    for name, figure in found.figures.items():
        if figure is not None:
            for kind in FILE_FORMATS:
                write(config.folder / "figures" / f"{name}.{kind}", printed(figure, kind))
            print(f"wrote {config.folder / 'figures' / name}.{{{','.join(FILE_FORMATS)}}}")


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0, or 2 where the person asked for something that is not there."""
    return run_command(__doc__, ReportConfig, arguments, prepare, lambda found: publish(*found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
