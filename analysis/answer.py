"""Print what the runs of a study say so far, in sentences, and write nothing.

    python -m archbench.analysis.answer study=main [runs=runs]

``archbench train`` calls it after each stage of a study (``study.stage``); ``archbench compare`` prints the
same sentences above its tables.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from archbench.analysis.comparison import Comparison
from archbench.analysis.load.study import load_study
from archbench.analysis.tables.compute import over_compute
from archbench.analysis.tables.sentences import answers
from archbench.analysis.tables.terminal import wrapped
from archbench.experiments.config.options import run_command
from archbench.experiments.runtime.console import table_console
from archbench.experiments.runtime.run_status import FINAL


@dataclass(frozen=True, kw_only=True)
class AnswerConfig:
    """The study."""

    study: str
    """The study to read, a folder inside ``runs``."""
    runs: str = "runs"
    """The folder of all studies."""


def sentences(config: AnswerConfig) -> list[str]:
    """Return a line for each task: over all budgets where there are several, else the differences.

    Raises ValueError if the study has no runs.
    """
    frame = load_study(Path(config.runs), config.study)
    frame = frame[frame["status"].isin([*FINAL])]  # runs that have begun have no score yet
    if frame.empty:
        return [f"no run of {config.study} has ended yet"]
    comparison = Comparison(frame)
    return over_compute(comparison) or answers(comparison.arms)


def show(lines: list[str]) -> None:
    """Print the lines."""
    for line in lines:
        table_console().print(wrapped(line))


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0, or 2 for a mistake in the arguments."""
    return run_command(__doc__, AnswerConfig, arguments, sentences, show)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
