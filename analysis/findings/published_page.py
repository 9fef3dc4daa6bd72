"""Published numbers beside ours: for the terminal, and as the Markdown of docs/results/published.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.findings.published import Record, Row
from analysis.stats.intervals import Estimate
from analysis.tables.markdown import table
from analysis.tables.text import WIDTH

PREAMBLE = """\
# Published numbers and ours

{counts}

{rows}

Ours: mean over seeds ± half-width of the 95% t-interval; higher is better unless the record says otherwise.
A number is `reproduced` within its tolerance, or `missed by` the distance to it; without a verdict only an
order is claimed. An order has its weakest gain, paired by seed: it `holds` where that is above 0 with its
95% interval, is `not separated` where only the means agree, and `does not hold` where a mean disagrees.

## Records

`archbench findings claim=NAME` prints both settings and the runs; `archbench findings
out=docs` writes this page.

{records}
"""
HEADERS = ("row", "published", "ours (seeds)", "verdict")
KINDS = ("reproduced", "missed", "holds", "not separated", "does not hold")
"""Beginnings of the verdicts on what was run."""
NOT_RUN = "not run"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of a record with our number."""

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
    """One record with all that was found."""

    name: str
    record: Record
    lines: list[Line]
    orders: list[tuple[str, OrderVerdict]]
    """Each claimed order and its verdict."""
    when: str
    """Date, machine, commit and seeds of our runs."""


def published_text(row: Row, digits: int) -> str:
    """What the source reports, as a cell."""
    if row.published is None:
        return row.words or "-"
    numbers = [row.published] if row.up_to is None else [row.published, row.up_to]
    shown = " to ".join(f"{number:.{digits}f}" for number in numbers)
    return f"{shown} ({row.words})" if row.words else shown


def cells(line: Line, digits: int) -> list[str]:
    """One row as text, a cell for each header."""
    ours = "-"
    if line.ours.n:
        half_width = "" if line.ours.half_width is None else f" ± {line.ours.half_width:.{digits}f}"
        ours = f"{line.ours.mean:.{digits}f}{half_width} ({line.ours.n})"
    return [line.row.name, published_text(line.row, digits), ours, line.verdict]


def summary(page: Page) -> list[str]:
    """Tier, title and how many verdicts of each kind."""
    return [page.record.tier, page.record.title, verdict_counts([page]) or NOT_RUN]


def verdict_counts(pages: Sequence[Page]) -> str:
    """Return how many verdicts of each kind there are."""
    verdicts = [verdict for page in pages for *_, verdict in _rows(page)]
    counts = {kind: sum(verdict.startswith(kind) for verdict in verdicts) for kind in KINDS}
    return ", ".join(f"{kind} {count}" for kind, count in counts.items() if count)


def facts(page: Page) -> list[tuple[str, str]]:
    """What stands above the numbers of a record."""
    record = page.record
    return [
        ("Published", f"{record.source}, {record.place}. {record.setting}"),
        ("Ours", record.differs),
        ("Run", page.when),
    ]


def text(pages: Sequence[Page]) -> str:
    """Return the records as plain text, ``WIDTH`` columns wide."""
    out = StringIO()
    # The height is given because Rich ignores a lone width on a dumb terminal.
    console = Console(file=out, width=WIDTH, height=1000, color_system=None, force_terminal=False)
    for page in pages:
        record = page.record
        console.print(Text(f"{record.title} (tier {record.tier}, claim={page.name}), {record.unit}", "bold"))
        for name, fact in [*facts(page), ("Command", record.command)]:
            console.print(Text(f"  {name}: {fact}"))
        console.print(_table(HEADERS, [cells(line, record.digits) for line in page.lines]))
        for claim, verdict in page.orders:
            console.print(Text(f"  {claim}: {verdict}."))
        console.print()
    if len(pages) > 1:
        console.print(_table(("tier", "record", "verdicts"), [summary(page) for page in pages]))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n") + "\n"


def markdown(pages: Sequence[Page]) -> str:
    """Return the page of results: one table of published numbers and ours, then what each record repeats."""
    run = [page for page in pages if page.when != NOT_RUN]
    rows = [[page.name, *line] for page in run for line in _rows(page)]
    left = [_link(page) for page in pages if page.when == NOT_RUN]
    entries = [_entry(page) for page in run] + [f"- Not run: {', '.join(left)}."] * bool(left)
    return PREAMBLE.format(
        counts=f"{len(run)} of {len(pages)} records were run. Verdicts: {verdict_counts(run)}.",
        rows="\n".join(table(("record", *HEADERS), rows)),
        records="\n".join(entries),
    )


def _rows(page: Page) -> list[list[str]]:
    """Return the numbers of a record, then its orders with their weakest gain."""
    numbers = [cells(line, page.record.digits) for line in page.lines]
    return numbers + [[claim, "", order.gain, order.verdict] for claim, order in page.orders]


def _link(page: Page) -> str:
    return f"[{page.record.title}](published/{page.name}.yaml)"


def _entry(page: Page) -> str:
    """Return source and unit of a record, and the command that repeats it."""
    record = page.record
    lower = "; lower is better" if record.direction == "lower" else ""
    source = f"{record.source}, {record.place}"
    return f"- `{page.name}`: {_link(page)}, {record.unit}{lower}. {source}. `{record.command}`"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for index, name in enumerate(head):
        table.add_column(
            name, overflow="fold", justify="right" if index in (1, 2) and len(head) == 4 else "left"
        )
    for row in rows:
        table.add_row(*row)
    return table
