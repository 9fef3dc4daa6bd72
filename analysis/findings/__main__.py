"""Decide the claims of the field that are registered, from the runs that their records name.

    archbench findings [claim=NAME] [runs=runs] [--own-runs]
    archbench findings out=docs

Prints a table of claims and verdicts; with ``out`` writes findings.md, findings/findings.csv and
findings/findings.svg into that folder. Records: docs/findings/*.yaml, each committed before the runs that
decide it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import rich.box
import rich.console
import rich.table

from analysis.cli import run_command, write
from analysis.figures.files import figure_bytes
from analysis.findings.claims import Claim
from analysis.findings.figure import findings_figure
from analysis.findings.page import difference, markdown, measurements
from analysis.findings.verdicts import Finding, judge, runs_of
from analysis.load.records import read_records
from experiments.runtime.errors import nearest

FIGURE = Path("findings") / "findings.svg"
TABLE = Path("findings") / "findings.csv"
WIDTH = 120
"""Characters of a line where the output is no terminal."""


@dataclass(frozen=True, kw_only=True)
class FindingsConfig:
    """The records to decide, and where the page goes."""

    claim: str = ""
    """Name of the one record to decide; empty for all."""
    records: str = "docs/findings"
    """The folder of records, one YAML each."""
    frames: str = "docs/results"
    """The folder of the studies' frames."""
    runs: str = "runs"
    """The folder of all studies; runs of a track that are there count beside those of its frame."""
    own_runs: bool = False
    """Judge by the runs in RUNS alone, and by no results that are kept."""
    out: str = ""
    """The folder of the page; empty for none."""

    def __post_init__(self) -> None:
        if self.claim and self.out:
            raise ValueError(f"out={self.out}: the page holds all claims; leave claim= or out= away")
        if self.own_runs and self.out:
            raise ValueError(f"out={self.out}: the page is of kept results; leave --own-runs or out= away")


def prepare(config: FindingsConfig) -> tuple[FindingsConfig, list[Finding]]:
    """Return the verdicts on the claims. Raises ValueError."""
    claims = read_records(Path(config.records), Claim)
    if config.claim and config.claim not in claims:
        raise ValueError(f"claim={config.claim}: there is no such record{nearest(config.claim, claims)}")
    asked = {config.claim: claims[config.claim]} if config.claim else claims
    runs, frames = Path(config.runs), None if config.own_runs else Path(config.frames)
    return config, [judge(name, claim, runs_of(claim, runs, frames)) for name, claim in asked.items()]


def publish(found: tuple[FindingsConfig, list[Finding]]) -> None:
    """Print the verdicts, and write the page."""
    config, findings = found
    table = rich.table.Table("claim", "verdict", "difference", box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for each in findings:
        table.add_row(f"{each.name}: {each.claim.claim}", each.verdict, difference(each))
    rich.console.Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH).print(table)
    if not config.out:
        return
    figure = findings_figure(findings)
    if figure is not None:
        print(f"wrote {write(Path(config.out) / FIGURE, figure_bytes(figure, 'svg'))}")
    print(f"wrote {write(Path(config.out) / TABLE, measurements(findings).to_csv(index=False))}")
    page = markdown(findings, None if figure is None else str(FIGURE))
    print(f"wrote {write(Path(config.out) / 'findings.md', page)}")


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0, or 2 for a mistake in the arguments."""
    return run_command(__doc__, FindingsConfig, arguments, prepare, publish)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
