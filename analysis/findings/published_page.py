"""Published results next to ours: for the terminal, and as the Markdown of docs/results/published.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from archbench.analysis.declared.records import NOT_RUN
from archbench.analysis.findings.published import Record, Row
from archbench.analysis.stats.intervals import Estimate
from archbench.analysis.tables.markdown import table
from archbench.experiments.runtime.console import WIDTH

PREAMBLE = """\
# Published numbers and ours

{counts}

{rows}

Ours: mean over seeds ± half-width of the 95% t-interval. Higher is better unless the unit says otherwise. A
number is `reproduced` within its tolerance, or `missed by` the distance to it. A claimed order of models has
its smallest gain, paired by seed: it `holds` if the 95% interval is above 0, is `not separated` if only the
means agree, and `does not hold` if a mean disagrees.

[published.csv](published.csv) has all rows, also those without a verdict of their own, with unit, source and
command. The YAML file of a record has both settings. `archbench findings claim=NAME` prints a record with its
runs, and `archbench findings out=docs` writes this page.

## Records

{records}
"""
HEADERS = ("row", "published", "ours (seeds)", "verdict")
KINDS = ("reproduced", "missed", "holds", "not separated", "does not hold")
"""Prefixes of the verdicts on records that were run."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row of a record with our result."""

    row: Row
    ours: Estimate
    verdict: str


@dataclass(frozen=True)
class OrderVerdict:
    """The verdict on a claimed order, and its weakest gain."""

    verdict: str
    pair: str = ""
    """The pair of rows with the weakest gain."""
    gain: str = ""
    """Its gain with the half-width of the interval."""

    def __str__(self) -> str:
        return f"{self.verdict}; weakest gain, {self.pair}: {self.gain}" if self.pair else self.verdict


@dataclass(frozen=True, kw_only=True)
class Page:
    """A record with our results and verdicts."""

    name: str
    record: Record
    lines: list[Line]
    orders: list[tuple[str, OrderVerdict]]
    """Each claimed order and its verdict."""
    when: str
    """Date, machine, commit and seeds of our runs."""


def published_text(row: Row, digits: int) -> str:
    """Return the published value as a table cell."""
    if row.published is None:
        return row.words or "-"
    values = [row.published] if row.up_to is None else [row.published, row.up_to]
    text = " to ".join(f"{value:.{digits}f}" for value in values)
    return f"{text} ({row.words})" if row.words else text


def cells(line: Line, digits: int) -> list[str]:
    """Return one row as text, a cell for each header."""
    our_text = "-"
    if line.ours.n:
        half_width = "" if line.ours.half_width is None else f" ± {line.ours.half_width:.{digits}f}"
        our_text = f"{line.ours.mean:.{digits}f}{half_width} ({line.ours.n})"
    return [line.row.name, published_text(line.row, digits), our_text, line.verdict]


def summary(page: Page) -> list[str]:
    """Return tier, name and title, and the number of verdicts by prefix."""
    return [page.record.tier, f"{page.name}: {page.record.title}", verdict_counts([page]) or NOT_RUN]


def verdict_counts(pages: Sequence[Page]) -> str:
    """Return the number of verdicts by prefix."""
    verdicts = [verdict for page in pages for *_, verdict in _rows(page)]
    counts = {label: sum(verdict.startswith(label) for verdict in verdicts) for label in KINDS}
    return ", ".join(f"{label} {count}" for label, count in counts.items() if count)


def facts(page: Page) -> list[tuple[str, str]]:
    """Return label and text of the facts that precede the table of a record."""
    record = page.record
    return [
        ("Published", f"{record.source}, {record.place}. {record.setting}"),
        ("Ours", record.differs),
        ("Run", page.when),
    ]


def text(pages: Sequence[Page]) -> str:
    """Return a record as plain text, or a line for each of several, ``WIDTH`` columns wide."""
    out = StringIO()
    # The height is set because Rich ignores a width without a height on a dumb terminal.
    console = Console(file=out, width=WIDTH, height=1000, color_system=None, force_terminal=False)
    if len(pages) > 1:
        console.print(_table(("tier", "published result", "verdicts"), [summary(page) for page in pages]))
    else:
        _print_record(console, pages[0])
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n") + "\n"


def _print_record(console: Console, page: Page) -> None:
    """Print title, facts, numbers and orders of a record."""
    record = page.record
    console.print(Text(f"{record.title} (tier {record.tier}, claim={page.name}), {record.unit}", "bold"))
    for name, fact in [*facts(page), ("Command", record.command)]:
        console.print(Text(f"  {name}: {fact}"))
    console.print(_table(HEADERS, [cells(line, record.digits) for line in page.lines]))
    for claim, verdict in page.orders:
        console.print(Text(f"  {claim}: {verdict}."))


def markdown(pages: Sequence[Page]) -> str:
    """Return the page of results: a table of the verdicts, then the records."""
    run = [page for page in pages if page.when != NOT_RUN]
    rows = [[page.name, *row] for page in run for row in _rows(page) if row[-1].startswith(KINDS)]
    not_run = [_link(page) for page in pages if page.when == NOT_RUN]
    entries = [f"- `{page.name}`: {_link(page)}, {_unit(page.record)}." for page in run]
    entries += [f"- Not run: {', '.join(not_run)}."] * bool(not_run)
    return PREAMBLE.format(
        counts=f"{len(run)} of {len(pages)} records were run. Verdicts: {verdict_counts(run)}.",
        rows="\n".join(table(("record", *HEADERS), rows)),
        records="\n".join(entries),
    )


def published_table(pages: Sequence[Page]) -> pd.DataFrame:
    """Return every row and order of the records, with unit, source and command."""
    columns = ["record", *HEADERS, "unit", "source", "command"]
    rows = [
        [
            page.name,
            *row,
            _unit(page.record),
            f"{page.record.source}, {page.record.place}",
            page.record.command,
        ]
        for page in pages
        for row in _rows(page)
    ]
    return pd.DataFrame(rows, columns=columns)


def _rows(page: Page) -> list[list[str]]:
    """Return the values of a record, then its orders with their weakest gain."""
    value_rows = [cells(line, page.record.digits) for line in page.lines]
    return value_rows + [[claim, "", order.gain, order.verdict] for claim, order in page.orders]


def _link(page: Page) -> str:
    return f"[{page.record.title}](published/{page.name}.yaml)"


def _unit(record: Record) -> str:
    return record.unit + ("; lower is better" if record.direction == "lower" else "")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for index, name in enumerate(head):
        table.add_column(
            name, overflow="fold", justify="right" if index in (1, 2) and len(head) == 4 else "left"
        )
    for row in rows:
        table.add_row(*row)
    return table
