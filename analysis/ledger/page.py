"""The ledger as text: for the terminal, and as the Markdown of docs/results/ledger.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.ledger.claims import TIERS, Record, Row
from analysis.stats.intervals import Estimate
from analysis.tables.markdown import table
from analysis.tables.text import WIDTH

PREAMBLE = """\
# Published numbers, and ours

    archbench ledger out=docs/results/ledger.md

writes this page from the records in `ledger/` and the frames beside it. Each section is one claim of one
source: what was published, in which setting, how ours differs, and the command that repeats it. Ours are
means over seeds ± the half-width of the 95% t-interval, the number of seeds in brackets.

A number has a tolerance where it should carry over: the settings are alike, or it is all or nothing (a
task is solved, or not at all), or a ratio. It is then `reproduced`, or `missed by` the distance to it.
Where a study is much smaller than the published one, the order of the rows is what is claimed: it `holds`
where every gain, paired by seed, is above 0 with its whole 95% interval over at least three seeds, is
`not separated` where only the means agree, and `does not hold` where a mean disagrees. `not run` is what
no study here has measured.

Tiers say what the command takes: C two CPU cores for minutes, G one GPU for hours, cluster more than that.
"""

HEADERS = ("row", "published", "ours (seeds)", "verdict")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of a record with our number."""

    row: Row
    ours: Estimate
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Page:
    """One record with all that was found."""

    name: str
    record: Record
    lines: list[Line]
    orders: list[tuple[str, str]]
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
    verdicts = [v.split(";")[0] for _, v in page.orders] + [line.verdict for line in page.lines]
    kinds = ("reproduced", "missed", "holds", "not separated", "does not hold")
    counts = {kind: sum(v.startswith(kind) for v in verdicts) for kind in kinds}
    found = ", ".join(f"{kind} {n}" for kind, n in counts.items() if n)
    return [page.record.tier, page.record.title, found or "not run"]


def facts(page: Page) -> list[tuple[str, str]]:
    """What stands above the numbers of a record."""
    record = page.record
    return [
        ("Published", f"{record.source}, {record.place}. {record.setting}"),
        ("Ours", record.differs),
        ("Run", page.when),
    ]


def text(pages: Sequence[Page]) -> str:
    """The ledger as plain text, ``WIDTH`` columns wide."""
    out = StringIO()
    # The height is given because Rich ignores a lone width on a dumb terminal.
    console = Console(file=out, width=WIDTH, height=1000, color_system=None, force_terminal=False)
    for page in pages:
        record = page.record
        console.print(Text(f"{record.title} (tier {record.tier}, record={page.name}), {record.unit}", "bold"))
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
    """The page of results: a summary, then a section for each record."""
    lines = [PREAMBLE, *table(("tier", "record", "verdicts"), [summary(page) for page in pages])]
    for tier in TIERS:
        for page in pages:
            if page.record.tier == tier:
                lines += _section(page)
    return "\n".join(lines) + "\n"


def _section(page: Page) -> list[str]:
    record = page.record
    better = "" if record.direction == "none" else f"; {record.direction} is better"
    lines = ["", f"## {record.title}", "", f"    {record.command}", ""]
    lines += [f"- {name}: {fact}" for name, fact in facts(page)]
    lines += [
        "",
        f"Unit: {record.unit}{better}. Tier {record.tier}, record `{page.name}`.",
        "",
    ]
    lines += table(HEADERS, [cells(line, record.digits) for line in page.lines])
    return lines + [""] * bool(page.orders) + [f"- {claim}: **{verdict}**." for claim, verdict in page.orders]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for index, name in enumerate(head):
        table.add_column(
            name, overflow="fold", justify="right" if index in (1, 2) and len(head) == 4 else "left"
        )
    for row in rows:
        table.add_row(*row)
    return table
