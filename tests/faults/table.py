"""Update tests/faults/recorded.csv and the table of tested faults, docs/reference/faults.csv.

FAULT_RECORD=faults.jsonl python -m pytest tests/faults --tier all
python -m tests.faults.table faults.jsonl
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from tests import ROOT

RANDOM = ("F45", "F46", "F47", "F48", "F49", "F50", "F51", "F52", "F53", "F54", "F55", "F56", "F57")
"""Faults of which each seed injects different ones, so that counts are summed."""
TABLE = ROOT / "docs" / "reference" / "faults.csv"
"""The table of the page on reliability."""
RECORDED = Path(__file__).with_name("recorded.csv")
"""Record of each fault test: fault, what was injected, how often, what happened, date."""
KINDS: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("kinds.yaml").read_text())
"""Kinds of faults: outcome, faults, and the files with tests."""

Row = dict[str, str]


def read_recorded() -> list[Row]:
    """Return the rows of recorded.csv."""
    with RECORDED.open(newline="") as file:
        return list(csv.DictReader(file))


def read_new(lines: Iterable[str], date: str) -> list[Row]:
    """Return the rows of a new record: of a fault injected both a few and many times, the many."""
    rows: dict[tuple[str, str], Row] = {}
    for line in lines:
        row = json.loads(line)
        key, count = (row["fault"], row["injected"]), row["count"]
        if key in rows:
            previous = int(rows[key]["count"])
            count = previous + count if row["fault"] in RANDOM else max(previous, count)
        rows[key] = {**row, "count": str(count), "date": date}
    return list(rows.values())


def merge(recorded: list[Row], new: list[Row]) -> list[Row]:
    """Return all rows, sorted. A new row replaces a stored one if the fault was injected as often."""
    rows = {(row["fault"], row["injected"]): row for row in recorded}
    for row in new:
        key = (row["fault"], row["injected"])
        if key not in rows or int(row["count"]) >= int(rows[key]["count"]):
            rows[key] = row
    return [row for _, row in sorted(rows.items())]


def render(rows: list[Row]) -> str:
    """Return the table as CSV: kind of fault, number injected, outcome."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["fault", "injected", "outcome"])
    for kind in KINDS:
        count = sum(int(row["count"]) for row in rows if row["fault"] in kind["faults"])
        writer.writerow([kind["kind"], count, kind["outcome"]])
    return text.getvalue()


def main() -> None:
    """Add a new record to recorded.csv and write the table."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    rows = merge(read_recorded(), read_new(Path(sys.argv[1]).read_text().splitlines(), today))
    with RECORDED.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["fault", "injected", "count", "happened", "date"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    TABLE.write_text(render(rows))


if __name__ == "__main__":
    main()
