"""Decide registered claims of the field, and print published results next to ours, from stored runs.

    archbench findings [claim=NAME] [runs=runs] [--own-runs]
    archbench findings out=docs

A registered claim is confirmed, refuted or undecided by the runs that its record names; records are
docs/findings/*.yaml, each committed before these runs. A published number (docs/results/published/*.yaml) is
reproduced or missed, and a published order of models holds or does not. With ``out`` the pages findings.md
and results/published.md are written into that folder, with their CSV files and the figure of the claims.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from archbench.analysis.declared.frames import Frames
from archbench.analysis.declared.records import decisions, read_records
from archbench.analysis.figures.matplotlib_export import printed
from archbench.analysis.files import csv_text, write
from archbench.analysis.findings import published_page
from archbench.analysis.findings.claims import Claim
from archbench.analysis.findings.figure import findings_figure
from archbench.analysis.findings.page import difference, markdown, measurements, sorted_by_verdict
from archbench.analysis.findings.published import Record, in_order
from archbench.analysis.findings.published_page import Page
from archbench.analysis.findings.published_verdicts import page_of
from archbench.analysis.findings.verdicts import Finding, decide_claim
from archbench.experiments.config.options import run_command
from archbench.experiments.runtime.console import plain_table, print_tables
from archbench.experiments.runtime.errors import nearest

FIGURE = Path("findings") / "findings.svg"
TABLE = Path("findings") / "findings.csv"
PUBLISHED = Path("results") / "published.csv"


@dataclass(frozen=True, kw_only=True)
class FindingsConfig:
    """The records to decide, and where the pages go."""

    claim: str = ""
    """Name of the one claim or published result to decide; empty for all."""
    claims: str = "docs/findings"
    """The folder of registered claims, one YAML each."""
    published: str = "docs/results/published"
    """The folder of published results, one YAML for each source."""
    frames: str = "docs/results"
    """The folder of our frames, FRAME.parquet each."""
    runs: str = "runs"
    """The folder of all studies; runs of a track in it count in addition to those of its frame."""
    own_runs: bool = False
    """Judge only by the runs in RUNS, not by stored results."""
    out: str = ""
    """The folder of the pages; empty for none."""

    def __post_init__(self) -> None:
        if self.claim and self.out:
            raise ValueError(f"out={self.out}: the pages have all claims; leave out claim= or out=")
        if self.own_runs and self.out:
            raise ValueError(f"out={self.out}: the pages are of stored results; leave out --own-runs or out=")


@dataclass(frozen=True, kw_only=True)
class Decided:
    """Claims and published results with their verdicts."""

    findings: list[Finding]
    published: list[Page]


def prepare(config: FindingsConfig) -> tuple[FindingsConfig, Decided]:
    """Return the verdicts. Raises ValueError."""
    claims = read_records(Path(config.claims), Claim)
    published = in_order(read_records(Path(config.published), Record))
    if config.claim and config.claim not in {*claims, *published}:
        hint = nearest(config.claim, {*claims, *published})
        raise ValueError(f"claim={config.claim}: there is no such record{hint}")
    frames = Frames(Path(config.runs), None if config.own_runs else Path(config.frames))
    if config.claim:
        claims = {name: claim for name, claim in claims.items() if name == config.claim}
        published = {name: record for name, record in published.items() if name == config.claim}
    findings = decisions(claims, decide_claim, frames)
    return config, Decided(findings=findings, published=decisions(published, page_of, frames))


def publish(config: FindingsConfig, decided: Decided) -> None:
    """Print the verdicts, and write the pages."""
    if decided.findings:
        table = plain_table("claim", "verdict", "difference", left=("verdict",))
        for finding in sorted_by_verdict(decided.findings):
            label = f"{finding.name}: {finding.claim.claim}" if config.claim else finding.name
            table.add_row(label, finding.verdict, difference(finding))
        print_tables(table)
    if decided.findings and decided.published:
        print()
    if decided.published:
        print(published_page.text(decided.published), end="")
    if config.out:
        for name, content in contents(decided).items():
            print(f"wrote {write(Path(config.out) / name, content)}")
    if not config.claim:
        print("A claim in words, or a published result in full: archbench findings claim=NAME")


def contents(decided: Decided) -> dict[Path, str | bytes]:
    """Return the contents of the pages and of the figure, by their paths."""
    figure = findings_figure(decided.findings)
    drawn = {} if figure is None else {FIGURE: printed(figure, "svg")}
    return {
        **drawn,
        TABLE: csv_text(measurements(decided.findings)),
        Path("findings.md"): markdown(decided.findings, None if figure is None else str(FIGURE)),
        Path("results") / "published.md": published_page.markdown(decided.published),
        PUBLISHED: csv_text(published_page.published_table(decided.published)),
    }


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0, 2 for a mistake in the arguments, 3 for a record that cannot be used."""
    return run_command(__doc__, FindingsConfig, arguments, prepare, lambda found: publish(*found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
